"""Started in place of an interpreter: has `preloaded_tests` fork one with these standard streams; ends with it.

Imports nothing but the standard library. Arguments: the path of the Unix socket, then those of the interpreter:
`-u -c PROGRAM`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> None:
    path, *arguments = sys.argv[1:]
    # Ctrl-C reaches the forked process too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        if is_forked(server, path, arguments[-1]):
            server.recv(1)
            return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *arguments])


def is_forked(server: socket.socket, path: str, program: str) -> bool:
    """Whether the server has forked a process for a program; False: the server has ended."""
    try:
        server.connect(path)
        socket.send_fds(server, [program.encode()], [0, 1, 2])
        return bool(server.recv(1))
    except OSError:
        return False


if __name__ == "__main__":
    main()
