"""`python -m psfleet.processes.attended SCRIPT [ARGS...]`: runs a client's script for as long as stdin is open.

`psfleet run` holds the other end of stdin: a script in a container ends with the command, also if that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from psfleet.errors import SIGNAL_BASE
from psfleet.service import settings

GRACE_SECS = 5.0
"""Until a script that does not end at SIGTERM is killed."""


def run(command: list[str], stdin: int) -> int:
    """Runs a command, passes SIGINT and SIGTERM on to it, and ends it when a descriptor reaches its end.

    Returns:
        Its exit code, 128 + n for signal n.
    """
    environment = settings.for_child({})
    settings.prepare_tensorflow(environment)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: child.send_signal(received))
    threading.Thread(target=_end_with, args=(child, stdin), name="attendance", daemon=True).start()
    code = child.wait()
    return SIGNAL_BASE - code if code < 0 else code


def _end_with(child: subprocess.Popen[bytes], stdin: int) -> None:
    """Ends the child once there is nothing to read any more."""
    while os.read(stdin, 4096):
        continue
    child.terminate()
    try:
        child.wait(GRACE_SECS)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(run([sys.executable, *sys.argv[1:]], sys.stdin.fileno()))
