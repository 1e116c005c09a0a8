"""Commands and services as child processes, forked by the standing fork server of this test session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from psfleet.errors import DeadlineError
from psfleet.polling import wait_until
from psfleet.processes.child import MODULES
from psfleet.processes.command import Command, Process
from psfleet.processes.fork_client import ForkServer
from psfleet.service import process_environment, settings

COMMAND = "PSFLEET_TEST_COMMAND"
"""Environment variable with what `forked_command` is to run; only the tests know it."""
FORK_SECS = 60.0
"""Until a process is forked: the first one waits for the import of TensorFlow."""
SERVER = "support.standing_fork_server"
SERVER_SECS = 30.0
"""Until a fork server listens."""
_standing: list[str] = []
"""The path of the Unix socket of this session's fork server; empty while there is none."""
_server_pids: list[int] = []
"""Process ids of the fork servers that this process has started, or has had forked."""


@contextmanager
def preloading_fork_server() -> Iterator[Path]:
    """Starts a process that imports TensorFlow and then forks, for a Unix socket at this path, during the block."""
    with tempfile.TemporaryDirectory(prefix="psfleet-") as folder:
        path = Path(folder, "fork-server")
        script = Path(__file__).with_name("standing_fork_server.py")
        process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(os.getpid()), str(path), *MODULES.values()],
            stdin=subprocess.DEVNULL, env=process_environment.for_child({}), start_new_session=True,
        )  # fmt: skip
        _server_pids.append(process.pid)
        try:
            yield path
        finally:
            _server_pids.remove(process.pid)
            process.kill()
            process.wait()


@contextmanager
def forked_fork_server(shared: Path) -> Iterator[Path]:
    """Has a fork server fork another one, for this process alone, during the block; yields its Unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="psfleet-") as folder:
        path, log = Path(folder, "fork-server"), Path(folder, "log")
        with standing_fork_server(shared):
            process = started(SERVER, "0", str(path), folder=Path.cwd(), out=log, err=log)
        _server_pids.append(process.pid)
        try:
            yield path
        finally:
            _server_pids.remove(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def standing_fork_server(path: Path) -> Iterator[None]:
    """Has the fork server with this Unix socket fork what this module starts during the block, and launchers below."""
    wait_until(path.exists, SERVER_SECS, f"the fork server at {path}", poll_secs=0.02)
    _standing.append(str(path))
    try:
        yield
    finally:
        _standing.clear()


def session_pids() -> frozenset[int]:
    """Process ids of this process and its fork servers: below these are all processes of the test session."""
    return frozenset([os.getpid(), *_server_pids])


def service(module: str, environment: Mapping[str, str], log: Path, is_alone: bool = False) -> Process:
    """Starts a service; it is killed with this process.

    Args:
        module: The package, such as `ps_service`.
        environment: Variables in addition to this process's own.
        log: Takes what it prints.
        is_alone: Whether it is started by itself rather than forked: a fork server names itself as the parent.
    """
    command = Command(module, module, process_environment.for_child({**standing(), **environment}), log)
    if is_alone or not _standing:
        return command.start_alone()
    process = ForkServer.connect(Path(_standing[0])).fork(command)
    # The leak check of a test leaves alone what module fixtures have started by then.
    wait_until(lambda: process.poll() is not None or process.pid, FORK_SECS, f"the fork of {module}", poll_secs=0.01)
    return process


def standing() -> dict[str, str]:
    """The environment variable that has launchers use this session's fork server."""
    return {settings.FORK_SERVER: _standing[0]} if _standing else {}


def started(
    module: str,
    *arguments: str,
    folder: Path,
    out: Path,
    err: Path,
    network: Path | None = None,
    stays: bool = False,
) -> Process:
    """Starts `python -m module arguments...` in a folder.

    Args:
        folder: The command's current folder.
        out: Takes what it prints to stdout, in place of what is there.
        err: The same for stderr; may be the same file.
        network: File of the network namespace that it runs in; None: that of this process.
        stays: Whether a service that replaces the command runs in the same interpreter, without another import of
            TensorFlow.
    """
    plan: dict[str, object] = {
        "folder": str(folder),
        "out": str(out),
        "err": str(err),
        "module": module,
        "arguments": arguments,
    }
    plan |= {"network": "" if network is None else str(network), "stays": stays}
    return service("support.forked_command", {COMMAND: json.dumps(plan)}, Path(os.devnull))


def psfleet(folder: Path, *arguments: str, timeout_secs: float) -> subprocess.CompletedProcess[str]:
    """Runs a command `psfleet` in a folder to its end.

    Raises:
        AssertionError: It has not ended in time; it is killed.
    """
    with tempfile.TemporaryDirectory() as screens:
        out, err = Path(screens, "out"), Path(screens, "err")
        process = started("psfleet", *arguments, folder=folder, out=out, err=err)
        try:
            wait_until(process.poll, timeout_secs, "its end", done=lambda code: code is not None, poll_secs=0.02)
        except DeadlineError as error:
            raise AssertionError(
                f"psfleet {' '.join(arguments)}: {error}\n{out.read_text()}{err.read_text()}"
            ) from error
        finally:
            process.send_signal(signal.SIGKILL)
            code = process.wait()
        return subprocess.CompletedProcess(["psfleet", *arguments], code, out.read_text(), err.read_text())
