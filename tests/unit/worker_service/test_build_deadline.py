"""A program that is never loaded or built ends its worker."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.process_end import ProcessEnd

from psfleet.errors import LOST_PEERS, DataStallError, ReplacedError, StoppedError
from worker_service import build_deadline

WAIT_SECS = 10.0


@pytest.mark.parametrize("failure", [None, ReplacedError("another process has the index"), RuntimeError("a bug")])
def test_a_program_that_is_never_built_ends_its_worker_with_75_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception | None
) -> None:
    end, reported = ProcessEnd(), []

    def report(error: DataStallError) -> None:
        reported.append(error)
        if failure is not None:
            raise failure

    monkeypatch.setattr("worker_service.build_deadline.os._exit", end)
    with build_deadline.building("program:build", 0.05 / build_deadline.DEADLINES, report):
        end.wait("a program")
    assert end.codes == [LOST_PEERS]
    message = "gave up after 0.05 s waiting for program 'program:build' to be loaded and built"
    assert [str(error) for error in reported] == [message]
    [record] = [record for record in caplog.records if record.getMessage() == message]
    assert vars(record)["event"] == "failed"


@pytest.mark.parametrize("returns", [False, True])
def test_a_signal_ends_a_worker_whose_program_does_not_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, returns: bool
) -> None:
    """Nothing is there to be saved that this process trained; a program that returns is stopped as any."""
    ended, codes, reported = threading.Event(), [], []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    stop: Any = SimpleNamespace(event=threading.Event(), error=lambda: StoppedError(15))
    monkeypatch.setattr(build_deadline, "STOP_SECS", WAIT_SECS if returns else 0.05)
    monkeypatch.setattr("worker_service.build_deadline.os._exit", end)
    caplog.set_level("INFO")
    with build_deadline.building("program:build", 600.0, reported.append, stop):
        stop.event.set()
        assert ended.wait(0 if returns else WAIT_SECS) != returns, "the signal is not noticed"
    assert codes == ([] if returns else [128 + 15])
    assert [str(error) for error in reported] == ([] if returns else ["stopped by SIGTERM"])
    assert len([record for record in caplog.records if record.getMessage() == "stopped by SIGTERM"]) == (not returns)


def test_a_program_that_is_built_in_time_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    timer = threading.Timer
    monkeypatch.setattr(build_deadline.threading, "Timer", lambda *args: made.append(timer(*args)) or made[-1])
    with build_deadline.building("program:build", 600.0, lambda error: None):
        assert made[0].is_alive()
    made[0].join(WAIT_SECS)
    assert not made[0].is_alive(), "the timer would end a process that trains"


@pytest.mark.parametrize(
    ("first_secs", "code"), [pytest.param(600.0, 143, id="signal"), pytest.param(0.01, LOST_PEERS, id="deadline")]
)
def test_a_program_that_returns_too_late_waits_for_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch, first_secs: float, code: int
) -> None:
    """The process may be saving what others have trained, which the chief would do, too, or ending the run."""
    order: list[str] = []
    is_saving, may_end = threading.Event(), threading.Event()

    def save(error: object) -> None:
        is_saving.set()
        assert may_end.wait(WAIT_SECS)
        order.append("saved")

    stop: Any = SimpleNamespace(event=threading.Event(), error=lambda: StoppedError(15))
    monkeypatch.setattr(build_deadline, "STOP_SECS", 0.01)
    monkeypatch.setattr("worker_service.build_deadline.os._exit", lambda code: order.append(f"exit {code}"))
    threading.Timer(0.2, may_end.set).start()
    with build_deadline.building("program:build", first_secs, save, stop):
        if code != LOST_PEERS:
            stop.event.set()
        assert is_saving.wait(WAIT_SECS)
    order.append("the program goes on")
    assert order == ["saved", f"exit {code}", "the program goes on"]
