"""A program that is never loaded or built ends its worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.process_end import ProcessEnd

from psfleet.errors import LOST_PEERS, DataStallError, ReplacedError
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


def test_a_program_that_is_built_in_time_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    timer = threading.Timer
    monkeypatch.setattr(build_deadline.threading, "Timer", lambda *args: made.append(timer(*args)) or made[-1])
    with build_deadline.building("program:build", 600.0, lambda error: None):
        assert made[0].is_alive()
    made[0].join(WAIT_SECS)
    assert not made[0].is_alive(), "the timer would end a process that trains"
