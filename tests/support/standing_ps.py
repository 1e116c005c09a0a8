"""Parameter servers that serve one run after the other, so that a test does not pay for starting its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.service_process import END_SECS, running


@contextmanager
def standing_ps(count: int, logs: Path) -> Iterator[list[str]]:
    """Runs `count` ps, each for any run; yields their `host:port` for `fleet.ps_addresses` while all of them live."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running("ps", logs, INDEX=str(index))) for index in range(count)]
        yield [server.address.data for server in servers]
        ended = {index: code for index, server in enumerate(servers) if (code := server.process.poll()) is not None}
        assert not ended, f"exit codes by ps: {ended}; their logs are in {logs}"
        for server in servers:
            server.process.send_signal(signal.SIGTERM)
        for server in servers:
            server.exit_code(END_SECS)
