"""`python -m psfleet.processes.attended SCRIPT [ARGS...]`: runs a client's script for as long as stdin is open.

`psfleet run` holds the other end of stdin: a script in a container ends with the command, also if that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

from psfleet.errors import SIGNAL_BASE
from psfleet.service import process_environment

GRACE_SECS = 5.0
"""Until a script that does not end at SIGTERM is killed."""


def run(command: list[str], await_end: Callable[[], None]) -> int:
    """Runs a command, passes SIGINT and SIGTERM on to it, and ends it when `await_end` returns.

    Returns:
        Its exit code, 128 + n for signal n.
    """
    environment = process_environment.for_child({})
    process_environment.prepare_tensorflow(environment)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: child.send_signal(received))
    threading.Thread(target=_end_with, args=(child, await_end), name="attendance", daemon=True).start()
    code = child.wait()
    return SIGNAL_BASE - code if code < 0 else code


def _end_with(child: subprocess.Popen[bytes], await_end: Callable[[], None]) -> None:
    await_end()
    child.terminate()
    try:
        child.wait(GRACE_SECS)
    except subprocess.TimeoutExpired:
        child.kill()


def await_eof(descriptor: int) -> None:
    """Waits until there is nothing to read any more."""
    while os.read(descriptor, 4096):
        continue


if __name__ == "__main__":
    sys.exit(run([sys.executable, *sys.argv[1:]], partial(await_eof, sys.stdin.fileno())))
