"""The parent of a worker's process in a container: what it tells the driver, and with which exit code it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.driver_control import RUN, ServedDriver, served_driver
from support.scripted_platform import job
from support.served import is_alive

from psfleet.control.worker_registry import Failure
from psfleet.polling import wait_until
from psfleet.service import settings

END_SECS = 30.0
SCRIPT = """\
import os, signal, subprocess
from psfleet.errors import ProgramError
from psfleet.service.process import run_service
from worker_service.driver_link import linked
from worker_service.watched_process import watched

def serve(settings, stop):
    with linked(settings, stop.end_process) as link:
        link.beat()
        begun = settings.out / "begun"
        with begun.open("a") as file:
            file.write(f"{os.getpid()}\\n")
        if len(begun.read_text().split()) == 1:
            END
        return 0

watched()
run_service("worker", lambda: serve)
"""
"""A process that ends in a certain way, and one after it that ends well."""


@contextmanager
def process(driver: ServedDriver, folder: Path, end: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose first process ends so."""
    own = {
        settings.DRIVER: driver.address.data,
        settings.RUN: RUN,
        settings.INDEX: "0",
        settings.OUT: str(folder),
        settings.LIFE: str(folder / "life"),
        settings.JOB: job(deadlines={"step_secs": 1}).model_dump_json(),
        "TMPDIR": str(folder / "tmp"),
    }
    (folder / "tmp").mkdir()
    command = [sys.executable, "-c", SCRIPT.replace("END", end)]
    with subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


def begun(folder: Path) -> list[int]:
    """The processes that have joined the driver."""
    path = folder / "begun"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize(
    ("end", "code", "processes", "told"),
    [
        ("os._exit(0)", 0, 2, [Failure(0, "", "")]),
        ("os._exit(78)", 0, 2, [Failure(78, "", "")]),
        ("os._exit(75)", 75, 1, [Failure(75, "", "")]),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, 1, [Failure(137, "", "")]),
        ("os.kill(os.getpid(), signal.SIGSTOP)", 75, 1, [Failure(75, "no sign of life for 3 s", "")]),
        ("raise ProgramError('NaN')", 70, 1, [Failure(70, "NaN", "")]),
        ("stop.end_process(64)", 64, 1, []),
        ("return 0", 0, 1, []),
    ],
)
def test_the_driver_hears_how_a_process_has_ended_that_has_not_said_so(
    tmp_path: Path, end: str, code: int, processes: int, told: list[Failure]
) -> None:
    heard: list[Failure] = []
    with served_driver(tmp_path) as driver:
        driver.registry.fail = lambda index, process, failure: heard.append(failure)  # type: ignore[method-assign]
        with process(driver, tmp_path, end) as started:
            assert started.wait(END_SECS) == code
    assert len(set(begun(tmp_path))) == processes
    assert heard == told
    assert not list((tmp_path / "tmp").iterdir()), "its files are removed"


def test_a_parent_gives_signs_of_life_and_passes_signals_on(tmp_path: Path) -> None:
    with served_driver(tmp_path) as driver, process(driver, tmp_path, "stop.event.wait(); raise stop.error()") as child:
        wait_until(lambda: begun(tmp_path), END_SECS, "the process")
        renewed = (tmp_path / "life").stat().st_mtime_ns
        wait_until(lambda: (tmp_path / "life").stat().st_mtime_ns > renewed, END_SECS, "the parent's sign of life")
        child.send_signal(signal.SIGTERM)
        assert child.wait(END_SECS) == 143


def test_a_program_that_ends_a_process_that_is_stopped_has_no_other_one(tmp_path: Path) -> None:
    with served_driver(tmp_path) as driver, process(driver, tmp_path, "stop.event.wait(); os._exit(0)") as child:
        wait_until(lambda: begun(tmp_path), END_SECS, "the process")
        child.send_signal(signal.SIGTERM)
        assert child.wait(END_SECS) == 75
    assert len(begun(tmp_path)) == 1


def test_what_a_program_has_started_ends_with_its_process(tmp_path: Path) -> None:
    end = "settings.out.joinpath('started').write_text(str(subprocess.Popen(['sleep', '600']).pid)); os._exit(0)"
    with served_driver(tmp_path) as driver, process(driver, tmp_path, end) as started:
        assert started.wait(END_SECS) == 0
    assert len(begun(tmp_path)) == 2
    left = (tmp_path / "started").read_text()
    wait_until(lambda: not is_alive(int(left)), END_SECS, f"the end of process {left}")


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    with served_driver(tmp_path) as driver, process(driver, tmp_path, "stop.event.wait()") as parent:
        wait_until(lambda: begun(tmp_path), END_SECS, "the process")
        parent.kill()
        (child,) = begun(tmp_path)
        wait_until(lambda: not Path(f"/proc/{child}/cmdline").exists(), END_SECS, "the end of the process")


def test_a_process_that_ends_before_it_has_joined_is_started_again_by_its_platform(tmp_path: Path) -> None:
    script = "import os; from worker_service.watched_process import watched; watched(); os._exit(0)"
    own = {settings.DRIVER: "localhost:1", settings.INDEX: "0", settings.OUT: str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **own}, timeout=END_SECS)
    assert done.returncode == 75


def test_a_process_without_a_driver_to_call_has_no_parent(tmp_path: Path) -> None:
    script = "import os; from worker_service.watched_process import watched; watched(); print(os.getpid())"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=tmp_path) as started:
        assert int(started.communicate(timeout=END_SECS)[0]) == started.pid
