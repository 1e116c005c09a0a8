"""`python -m psfleet.processes.renewed FILE SCRIPT [ARGS...]`: runs a client's script for as long as a file is renewed.

`psfleet run` renews it: a script in a pod ends soon after the command, also if that is killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from psfleet.processes.attended import run

RENEW_SECS = 10.0
"""Interval in which `psfleet run` renews the file."""
LAPSE_SECS = 180.0
"""How long the file may stay the same. An API that is away for less than two minutes ends no client."""
LOOK_SECS = 1.0


def await_lapse(
    file: Path, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], object] = time.sleep
) -> None:
    """Waits until a file has stayed the same for `LAPSE_SECS`; one that cannot be read has not changed.

    Args:
        clock: Monotonic time in seconds.
        pause: Waits for some seconds.
    """
    before, deadline = "", clock() + LAPSE_SECS
    while clock() < deadline:
        text = _read(file)
        if text not in ("", before):
            before, deadline = text, clock() + LAPSE_SECS
        pause(LOOK_SECS)
    sys.stderr.write(f"`psfleet run` has not renewed {file} for {LAPSE_SECS:g} s: the script is ended\n")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(run([sys.executable, *sys.argv[2:]], partial(await_lapse, Path(sys.argv[1]))))
