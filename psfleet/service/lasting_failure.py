"""Keeps a process that has failed for good from ending where its engine would start it again: it waits to be stopped.

Its health check reports why it failed.

Docker has no restart policy that depends on the exit code, and only `unless-stopped` starts containers again after a
restart of the engine. A process that a bug has ended does not wait: the next one may serve, and Docker pauses between
starts, up to a minute.
"""

from __future__ import annotations

import threading
from pathlib import Path

from psfleet.errors import PERMANENT_CODES

PREFIX = "failed with exit code "
"""Begins what the health check of such a process prints: `failed with exit code 78: ...`."""


def wait_if_permanent(file: Path | None, code: int, message: str, stopped: threading.Event) -> None:
    """Returns at once, or after a permanent error when the process is asked to stop.

    Args:
        file: See `psfleet.service.settings.failure_file`; it disappears with the container's /tmp when that is started
            again.
        code: Exit code of the process.
        message: Why it ends.
        stopped: Set by a signal.
    """
    if file is None or code not in PERMANENT_CODES:
        return
    file.write_text(f"{PREFIX}{code}: {message}\n", encoding="utf-8")
    stopped.wait()
