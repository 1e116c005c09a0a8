"""Imports the tests of a parallel test run once, and TensorFlow with them; then forks the run's processes.

pytest-xdist starts an interpreter for each process, which imports all tests: 8 CPU seconds. Here it starts
`preloaded_tests_client`, which has this process fork one and passes it its standard streams. If the tests cannot be
imported, this process ends, and the clients become such interpreters.

Arguments: the process id of the test run, the path of the Unix socket, the arguments of pytest.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from psfleet.polling import wait_until
from psfleet.service.parent import die_with
from support.standing_fork_server import accepted, use_huge_pages

CLIENT = Path(__file__).with_name("preloaded_tests_client.py")
PROGRAM = "import sys; sys.path[:] = {path}; from support.preloaded_tests import main; main()"
LISTENS_SECS = 30.0
"""Until the process listens; its clients then wait for the imports."""
NAMES_TENSORFLOW = re.compile(rb"^(import|from) (tensorflow|keras)\b", re.MULTILINE)
MAX_BYTES = 4096
"""Of the program with which pytest-xdist starts a process."""


class NotImported(pytest.Module):
    """A module of which nothing is collected."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return []


class ImportsOnly:
    """A pytest plugin: modules are imported, without a look at what they define.

    Those that name TensorFlow or Keras are left to the forked processes: some run operations when they are imported,
    for which TensorFlow starts threads, and no thread survives a fork. What they import comes with other modules.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        if not NAMES_TENSORFLOW.search(module_path.read_bytes()):
            return None
        module: pytest.Module = NotImported.from_parent(parent, path=module_path)
        return module

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []


@contextmanager
def preloaded_tests(arguments: Sequence[str]) -> Iterator[str]:
    """Starts the process, which lasts as long as the block; yields the command in place of an interpreter's.

    Args:
        arguments: Of pytest.
    """
    with tempfile.TemporaryDirectory(prefix="psfleet-") as folder:
        path = Path(folder, "tests")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(path=sys.path), str(os.getpid()), str(path), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(path.exists, LISTENS_SECS, "the process that imports the tests", poll_secs=0.02)
            yield f"{sys.executable} -I -S {CLIENT} {path}"
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Forks until the test run ends."""
    parent_pid, path, *arguments = sys.argv[1:]
    die_with(int(parent_pid))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        os.rename(f"{path}.new", path)
        code = pytest.main([*arguments, "--numprocesses=0", "--collect-only"], plugins=[ImportsOnly()])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.exit(code)
        if any(name.startswith("tf_") for name in threads()):
            sys.exit("a test module has run TensorFlow when it was imported")
        gc.freeze()
        use_huge_pages()
        # Ctrl-C is for the test run and its processes.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        connection = accepted(listener)
    with connection, socket.socket(fileno=os.dup(connection.fileno())) as client:
        become(client)


def threads() -> list[str]:
    """The names of this process's threads."""
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]


def become(client: socket.socket) -> None:
    """Turns a forked process into the interpreter that the client stands for; the connection ends with it."""
    program, streams, _, _ = socket.recv_fds(client, MAX_BYTES, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    client.sendall(b".")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Until the tests are collected: see `conftest`.
    gc.disable()
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]
    # Python reseeds its own `random` after a fork (random.py), NumPy does not.
    np.random.seed()
    sys.argv = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(program, vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()
