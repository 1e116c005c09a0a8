"""Parameter servers that serve one run after the other, so that a test does not pay for starting its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from psfleet.addresses import Address
from psfleet.launch.local.ports import free_addresses
from psfleet.service import settings

END_SECS = 10.0
"""From SIGTERM to the end of a ps."""


@contextmanager
def standing_ps(count: int, logs: Path) -> Iterator[list[str]]:
    """Runs `count` ps, each for any run; yields their `host:port` for `fleet.ps_addresses` while all of them live."""
    with ExitStack() as stack:
        addresses = free_addresses(count)
        servers = [stack.enter_context(_serving(index, at, logs)) for index, at in enumerate(addresses)]
        yield [address.data for address in addresses]
        ended = {index: server.returncode for index, server in enumerate(servers) if server.poll() is not None}
        assert not ended, f"exit codes by ps: {ended}; their logs are in {logs}"


@contextmanager
def _serving(index: int, address: Address, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    own = {settings.INDEX: str(index), settings.ADDRESS: address.data, settings.PARENT: str(os.getpid())}
    with (logs / f"ps-{index}.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "ps_service"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own},
            start_new_session=True,
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(END_SECS)
        finally:
            server.kill()
            server.wait()
