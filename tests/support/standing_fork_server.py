"""Imports TensorFlow once for a test session: forks a fork server for each launcher that connects.

Each launcher has a fork server of its own, so that its processes end with it as they do without the tests.
Arguments: the process id of the test session, the path of the Unix socket, the packages of the services.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from psfleet.processes import fork_server
from psfleet.service.process import die_with

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below this process become its children, so that the leak check of `conftest` finds them."""


def main() -> None:
    """Forks until the test session ends."""
    session_pid, path, *modules = sys.argv[1:]
    die_with(int(session_pid))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        os.chmod(f"{path}.new", 0o600)
        listener.listen(64)
        os.rename(f"{path}.new", path)
        fork_server.preload(modules)
        preload_commands()
        connection = accepted(listener)
    fork_server.run(connection)


def preload_commands() -> None:
    """Imports what each command `psfleet`, and each chief, would otherwise import again after its fork."""
    for module in ("psfleet.cli.main", "tensorboard.summary"):
        importlib.import_module(module)
    gc.freeze()


def accepted(listener: socket.socket) -> Connection:
    """A connection to a launcher, in a process of its own; never returns in the process that listens."""
    listening_pid = os.getpid()
    signal.signal(signal.SIGCHLD, lambda number, frame: wait_for_ended())
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with(listening_pid)
                return Connection(connection.detach())


def wait_for_ended() -> None:
    """Waits for the children that have ended, adopted ones too: their CPU seconds count as the session's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
