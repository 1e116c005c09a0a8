"""A firewall closes TensorFlow's port of a ps but not its control port: the worker says so and can be retried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.service_process import START_SECS, running
from support.tiny_job import PRELUDE

from psfleet.addresses import Address
from psfleet.errors import LOST_PEERS
from psfleet.job.job import parse_job
from psfleet.processes.ports import free_addresses

RUN = "blocked"
STALL_SECS = 6.0
"""Enough for many attempts to open a session."""


def test_a_blocked_data_port_ends_the_chief_with_75_and_its_address_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRELUDE)
    job = parse_job(
        {
            "name": RUN,
            "program": "program:build",
            "fleet": {"ps": 1, "workers": 1},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 20, "batch_size": 4},
            "deadlines": {"step_secs": 0.3, "stall_secs": STALL_SECS, "first_batch_secs": STALL_SECS},
        }
    ).model_dump_json()
    told: dict[str, Any] = {"JOB": job, "RUN": RUN, "PROGRAM_FOLDER": str(tmp_path), "INDEX": "0"}
    with running("ps", tmp_path, **told) as ps, control_port_alone(ps.serving().address) as seen:
        with running("worker", tmp_path, PS=seen.data, **told) as chief:
            assert chief.exit_code(START_SECS) == LOST_PEERS, chief.entries()
        [failed] = chief.failures()
        reason = f"TensorFlow's port of ps 0 at {seen.data} cannot be reached (Connection refused)"
        assert reason in failed["message"]
        assert [entry for entry in chief.entries() if entry.get("event") == "lost_peer"], "it tries before it gives up"


@contextmanager
def control_port_alone(ps: Address) -> Iterator[Address]:
    """An address of which only the control port leads to a ps."""
    [seen] = free_addresses(1)
    with socket.create_server((seen.host, seen.port + 1)) as listener:
        threading.Thread(target=_forward, args=(listener, ps), daemon=True).start()
        yield seen
        listener.shutdown(socket.SHUT_RDWR)


def _forward(listener: socket.socket, ps: Address) -> None:
    with suppress(OSError):
        while True:
            inner, _ = listener.accept()
            outer = socket.create_connection((ps.host, ps.port + 1))
            for source, target in ((inner, outer), (outer, inner)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with source, suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
