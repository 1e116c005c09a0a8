"""A member of a service that is stopped before it has joined the front."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path

from support import commands
from support.exported_run import trained

from psfleet.errors import SIGNAL_BASE
from psfleet.job.service_access import MemberSource, ServiceAccess
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.service import settings

MODEL_SECS = 60.0
"""Until the member has built its model and looks for the front."""
STOP_SECS = 10.0
"""A member waits for its front for 60 s."""


def test_a_member_that_waits_for_its_front_ends_at_sigterm(tmp_path: Path) -> None:
    """As in `psfleet down`, after whose first part the platform starts a member again that has lost its front."""
    source = MemberSource(run=str(trained(tmp_path)))
    front, own = free_addresses(2)
    access = ServiceAccess(name="net", front=front.data, num_models=1, mode="between_graph", member=source)
    environment = {
        settings.SERVICE: access.model_dump_json(),
        settings.ADDRESS: own.data,
        settings.INDEX: "0",
        settings.OUT: str(tmp_path),
    }
    with socket.create_server((front.host, front.port)) as listening:
        listening.settimeout(MODEL_SECS)
        process = commands.service("worker_service.member", environment, tmp_path / "log")
        try:
            connection, _ = listening.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                wait_until(process.poll, STOP_SECS, "the end of the member", done=lambda code: code is not None)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
    assert process.returncode == SIGNAL_BASE + signal.SIGTERM
    assert "stopped by SIGTERM" in (tmp_path / "log").read_text()
