"""Imports TensorFlow once for a test session: forks a fork server for each launcher that connects.

Each launcher has a fork server of its own, so that its processes end with it as they do without the tests.
Arguments: the process id of the test session, the path of the Unix socket, the packages of the services. Forked by
another such server, whose imports it has: 0, the path.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from psfleet.cli import main as command_line
from psfleet.processes import fork_server
from psfleet.service.parent import die_with

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below this process become its children, so that the leak check of `conftest` finds them."""


MADV_COLLAPSE = 25
"""madvise(2), from Linux 6.1 on: moves memory to huge pages now."""
HUGE_PAGE = 1 << 21
"""Bytes; on machines with pages of another size nothing is moved."""


def main() -> None:
    """Forks until the test session ends."""
    session_pid, path, *modules = sys.argv[1:]
    die_with(int(session_pid))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if modules:
        sys.path.insert(0, str(Path(__file__).parents[1]))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        os.chmod(f"{path}.new", 0o600)
        listener.listen(64)
        os.rename(f"{path}.new", path)
        if modules:
            fork_server.preload(modules)
            preload_commands()
        use_huge_pages()
        connection = accepted(listener)
    fork_server.run(connection)


def preload_commands() -> None:
    """Prepares what each command `psfleet`, and each chief, would otherwise prepare again after its fork."""
    importlib.import_module("tensorboard.summary")
    command_line.command()
    gc.freeze()


def use_huge_pages() -> None:
    """Moves what was imported to huge pages, where Linux allows it: a fork then has fewer entries to copy.

    Of 19 ms of CPU time that a fork and the end of its process take without anything between them, 9 are left. A test
    session forks some hundred processes, most of them several times.
    """
    libc = ctypes.CDLL(None)
    for address in huge_pages():
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


def huge_pages() -> Iterator[int]:
    """The addresses in this process's memory, other than that of files, at which a huge page has room."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.fullmatch(r"(\w+)-(\w+) rw-p \S+ \S+ 0(?: +\[heap\])? *", line)
        if found:
            start, end = (int(text, 16) for text in found.groups())
            yield from range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE)


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
