"""Processes that a fork server starts: many from one, each with its own output, and alone where the server cannot."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psfleet.polling import wait_until
from psfleet.processes import fork_client
from psfleet.processes.command import Command
from psfleet.processes.fork_client import Forked, ForkServer
from psfleet.service import process_environment, settings

SECS = 20.0
SERVICE = """\
import json, os, random, signal, sys
import numpy

def main():
    seen = {"parent": os.getppid(), "named": int(os.environ["PSFLEET_PARENT_PID"]), "session": os.getsid(0)}
    seen |= {"draws": [random.random(), numpy.random.random()], "own": os.environ.get("OWN"), "argv": sys.argv[1:]}
    seen |= {"files": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)], "open": os.listdir("/proc/self/fd")}
    seen |= {"prepared": getattr(sys.modules.get("prepared.service"), "BY", [])}
    print(json.dumps(seen), flush=True)
    if os.environ.get("WAITS"):
        # signal.pause() would sleep on if Python has noted a signal right before it; the pipe has a byte then.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        while True:
            os.read(reader, 1)

if __name__ == "__main__":
    main()
"""

PREPARED = """\
import os

BY = []

def preload():
    BY.append(os.getpid())
"""

MODULES = ["sample_service", "prepared"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a fork server")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services on the Python path: one that prints, and one with nothing but a function `preload`."""
    folder = tmp_path_factory.mktemp("services")
    (folder / "prepared").mkdir()
    (folder / "prepared" / "service.py").write_text(PREPARED)
    (folder / "sample_service.py").write_text(SERVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield


@pytest.fixture
def server(services: None) -> Iterator[ForkServer]:
    """A fork server that imports both services, for one test."""
    server = ForkServer.start(MODULES)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def standing_server(services: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server for all tests that leave it as it is: a process that waits keeps it alive."""
    server = ForkServer.start(MODULES)
    fork(server, tmp_path_factory.mktemp("standing") / "standing", WAITS="yes")
    yield server
    server.kill()


def fork(server: ForkServer, log: Path, **environment: str) -> Forked:
    return server.fork(
        Command(
            "sample_service",
            log.stem,
            process_environment.for_child({settings.PARENT: str(os.getpid()), **environment}),
            log,
        )
    )


def seen(log: Path) -> dict[str, Any]:
    """What a process printed once it started."""
    lines = wait_until(lambda: log.exists() and log.read_text().splitlines(), SECS, f"a line in {log}", poll_secs=0.01)
    assert lines
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_forked_processes_share_nothing_that_they_must_not(server: ForkServer, tmp_path: Path) -> None:
    logs = [tmp_path / f"worker {index}.log" for index in range(3)]
    processes = [fork(server, log, OWN=log.stem) for log in logs]
    assert [process.wait() for process in processes] == [0, 0, 0]
    found = [seen(log) for log in logs]
    for process, log, said in zip(processes, logs, found, strict=True):
        assert said["own"] == log.stem
        assert said["parent"] == said["named"]
        assert said["parent"] != os.getpid(), "the server refused it: it was started alone"
        assert said["session"] == process.pid
        assert said["files"] == [os.devnull, str(log), str(log)]
        assert said["argv"] == []
        assert said["prepared"] == [said["parent"]], "the server prepared the service, once"
        assert len(said["open"]) == 4, f"stdin, stdout, stderr and the listing itself, but not {said['open']}"
    assert len({draw for said in found for draw in said["draws"]}) == 6, "random numbers are not shared"
    assert not server.is_open, "it ends with the last of its processes"


def test_ps_shows_what_a_forked_process_is(standing_server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "worker 7.log"
    process = fork(standing_server, log, WAITS="yes")
    seen(log)
    process.poll()
    assert Path(f"/proc/{process.pid}/comm").read_text() == "worker 7\n"
    assert Path(f"/proc/{process.pid}/cmdline").read_text().rstrip("\0") == "psfleet worker 7"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_process_with_another_start_environment_is_started_alone(standing_server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "ps 0.log"
    process = fork(standing_server, log, OMP_NUM_THREADS="7")
    assert process.wait() == 0
    assert seen(log)["named"] == os.getpid(), "the launcher is its parent"


def test_a_process_with_a_tf_config_is_forked(standing_server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "ps 0.log"
    process = fork(standing_server, log, TF_CONFIG="{}")
    assert process.wait() == 0
    assert seen(log)["named"] != os.getpid(), "the fork server is its parent"


def test_processes_end_with_their_fork_server_and_new_ones_start_alone(server: ForkServer, tmp_path: Path) -> None:
    first, second = tmp_path / "ps 0.log", tmp_path / "ps 1.log"
    process = fork(server, first, WAITS="yes")
    seen(first)
    # Without its number it would be started alone, too: the server might have died before it forked.
    wait_until(lambda: process.poll() or process.pid, SECS, "the number of the process")
    server.kill()
    late = fork(server, second)
    assert (process.wait(), late.wait()) == (-signal.SIGKILL, 0)
    assert json.loads(second.read_text())["parent"] == os.getpid()


def test_a_signal_reaches_a_process_that_its_fork_server_never_forked(server: ForkServer, tmp_path: Path) -> None:
    process = fork(server, tmp_path / "ps 0.log", WAITS="yes")
    process.send_signal(signal.SIGTERM)
    server.kill()
    assert process.wait() in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_signal_right_after_the_fork_is_not_lost(standing_server: ForkServer, tmp_path: Path) -> None:
    """Python clears the signals that are pending in a forked child before its first instruction."""
    waiting = fork(standing_server, tmp_path / "waiting", WAITS="yes")
    for number in range(20):
        process = fork(standing_server, tmp_path / f"process-{number}", WAITS="yes")
        process.send_signal(signal.SIGINT)
        wait_until(process.poll, SECS, "the end of a process that got SIGINT", done=lambda code: code is not None)
    assert waiting.poll() is None


def test_a_process_of_a_server_that_hangs_can_be_killed(server: ForkServer, tmp_path: Path) -> None:
    process = fork(server, tmp_path / "one", WAITS="yes")
    seen(tmp_path / "one")
    assert server._process is not None
    server._process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not server.is_open


def test_a_server_that_imports_yet_is_not_waited_for_when_all_it_was_to_fork_are_killed(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "KILL_SECS", 3600.0)
    assert server._process is not None
    server._process.send_signal(signal.SIGSTOP)
    processes = [fork(server, tmp_path / f"process-{number}") for number in range(3)]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    assert [process.wait() for process in processes] == [-signal.SIGKILL] * 3
    assert not server.is_open


def test_a_server_ends_though_another_child_of_the_launcher_holds_its_connection(
    server: ForkServer, tmp_path: Path
) -> None:
    """As a process pool in a notebook does: a fork copies the launcher's descriptors."""
    process = fork(server, tmp_path / "one", WAITS="yes")
    seen(tmp_path / "one")
    holder = os.fork()
    if holder == 0:
        signal.pause()
        os._exit(0)
    try:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert not server.is_open
        assert server._process is not None
        assert server._process.returncode == 0, "it ended by itself"
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def test_a_process_that_is_killed_takes_no_other_with_it(standing_server: ForkServer, tmp_path: Path) -> None:
    """Replies about other processes arrive while the launcher waits for the end of one."""
    killed = fork(standing_server, tmp_path / "killed", WAITS="yes")
    seen(tmp_path / "killed")
    others = [fork(standing_server, tmp_path / f"other-{number}", WAITS="yes") for number in range(5)]
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert standing_server.is_open
    assert [other.poll() for other in others] == [None] * 5
    for other in others:
        other.send_signal(signal.SIGKILL)
        assert other.wait() == -signal.SIGKILL
