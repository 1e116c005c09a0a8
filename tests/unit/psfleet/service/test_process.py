"""The effect of signals on a service process."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.chief_samples import sample_job

from psfleet.errors import BAD_JOB
from psfleet.polling import run_within, wait_until
from psfleet.service import process
from psfleet.service.exit_records import AlreadyEndedError, ExitRecord
from psfleet.service.process import Stop
from psfleet.service.settings import RECORDS, read

LISTEN_SECS = 10.0
FULL = Path("/dev/full")
"""Linux: each write fails as on a full disk."""


@pytest.mark.parametrize(
    ("number", "leaves_on_sigterm", "chief_leaves"),
    [
        (signal.SIGTERM, False, False),
        (signal.SIGINT, False, False),
        (signal.SIGTERM, True, True),
        (signal.SIGINT, True, False),
    ],
)
def test_a_worker_leaves_and_the_chief_saves_unless_it_is_replaced(
    stop: Stop, number: int, leaves_on_sigterm: bool, chief_leaves: bool
) -> None:
    stop.leaves_on_sigterm = leaves_on_sigterm
    assert not stop.must_leave(0)
    assert not stop.must_leave(1)
    assert not stop.must_save()
    os.kill(os.getpid(), number)
    assert stop.event.wait(LISTEN_SECS)
    assert stop.must_leave(1)
    assert stop.must_leave(0) == chief_leaves
    assert stop.must_save() != chief_leaves
    assert stop.error().exit_code == 128 + number
    assert str(stop.error()) == f"stopped by {signal.Signals(number).name}"


def test_a_signal_that_a_program_handles_itself_stops_nothing(stop: Stop) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: seen, LISTEN_SECS, "the program's own handler")
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.event.wait(LISTEN_SECS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.error().exit_code == 128 + signal.SIGTERM


def test_an_exit_record_of_a_container_is_that_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    container = replace(read({}), job=sample_job(), program_folder=tmp_path, records=tmp_path)
    before = process.program_digest(container)
    (tmp_path / "program.py").write_text("fixed = True")
    assert process.program_digest(container) not in ("", before)
    assert process.program_digest(replace(container, records=None)) == "", "it is not needed"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_process_whose_log_is_on_a_full_disk_ends_with_its_exit_code() -> None:
    program = """
from psfleet.errors import LostPeerError
from psfleet.service.process import run_service
def load():
    raise LostPeerError("gone")
run_service("ps", load)
"""
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    with FULL.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=full, env=buffered, timeout=60, check=False)
    assert done.returncode == 75


def test_a_process_that_failed_for_good_is_recorded_and_the_next_one_of_its_container_ends_like_it(
    tmp_path: Path,
) -> None:
    program = """
from psfleet.errors import BadJobError
from psfleet.service.process import run_service
def load():
    print("loaded", flush=True)
    raise BadJobError("a layout that differs")
run_service("ps", load)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, RECORDS: str(tmp_path)}
    ends = [
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        for _ in range(2)
    ]
    assert [(end.returncode, "loaded" in end.stdout) for end in ends] == [(BAD_JOB, True), (BAD_JOB, False)]
    assert "a layout that differs" in ends[1].stdout + ends[1].stderr


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_process_ends_with_its_launcher(tmp_path: Path, platform: str) -> None:
    """A chain: the launcher starts the service and is killed; the pipe closes when the last of both has ended."""
    service = f"""
import os, sys, threading
from psfleet.service import parent
sys.platform = {platform!r}
parent.die_with(os.getppid())
print("ready", flush=True)
threading.Event().wait()
"""
    (tmp_path / "service.py").write_text(service)
    launcher = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", launcher, str(tmp_path / "service.py")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.kill()
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(started.stdout or ()))
        reader.start()
        reader.join(LISTEN_SECS)
        assert not reader.is_alive(), "the service outlives its launcher"
    assert lines == []


def test_what_a_service_imports_is_exempt_from_garbage_collection() -> None:
    """The first collection would look at all of TensorFlow."""
    imported: list[object] = []

    def load() -> process.Service:
        imported.append([])
        assert not gc.isenabled()
        return lambda settings, stop: 0

    process._loaded(load)
    assert gc.isenabled()
    assert not any(each is imported[0] for each in gc.get_objects())


def test_a_process_that_one_of_its_threads_ends_is_not_started_again(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(process.os, "_exit", ended.append)
    stop.record = ExitRecord(tmp_path, "host")
    stop.record.begin()
    stop.end_process(70)
    assert ended == [70]
    with pytest.raises(AlreadyEndedError, match="it has ended with exit code 70") as raised:
        ExitRecord(tmp_path, "host").begin()
    assert raised.value.exit_code == 70


def test_a_stuck_process_writes_its_stacks_whatever_the_program_has_made_of_sys_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    said: list[str] = []
    process.log_end(lambda: said.append("why"))
    assert said == ["why"]
    assert "most recent call first" in capfd.readouterr().err


def test_a_log_that_is_stuck_or_fails_does_not_hold_the_end_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_SECS", 0.05)
    never = threading.Event()
    run_within(LISTEN_SECS, lambda: process.log_end(lambda: never.wait(10 * LISTEN_SECS), with_stacks=False))
    never.set()
    process.log_end(lambda: {}["no such key"], with_stacks=False)


def test_a_standard_error_that_nobody_reads_does_not_hold_the_end_of_a_process() -> None:
    """In a process of its own: a thread that holds the interpreter's lock for ever cannot be given up."""
    code = """
import os
from psfleet.service import process
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, bytes(4096))
except BlockingIOError:
    os.set_blocking(writer, True)
os.dup2(writer, 2)
process.LOG_SECS = 0.1
process.log_end(lambda: None)
os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=10 * LISTEN_SECS, check=False).returncode == 7
