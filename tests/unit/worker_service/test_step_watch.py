"""A step whose operations never return ends its worker, and no other does."""

from __future__ import annotations

import threading

import pytest
from support.process_end import ProcessEnd

from psfleet.errors import LOST_PEERS
from worker_service import step_watch
from worker_service.step_watch import StepWatch


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> ProcessEnd:
    found = ProcessEnd()
    monkeypatch.setattr(step_watch, "LOOK_SECS", 0.01)
    monkeypatch.setattr("worker_service.step_watch.os._exit", found)
    return found


def test_a_step_that_does_not_return_ends_its_worker_with_75(end: ProcessEnd, caplog: pytest.LogCaptureFixture) -> None:
    watch = StepWatch(0.05)
    watch.start()
    with watch:
        end.wait("the end")
    assert end.codes == [LOST_PEERS]
    assert "gave up after 0.05 s waiting for the operations of a step to return" in caplog.text


def test_a_session_that_is_closed_does_not_end_the_watch_of_a_step_that_runs(end: ProcessEnd) -> None:
    watch = StepWatch(0.05)
    watch.start()
    with watch:
        watch.close()
        end.wait("the end")
    assert end.codes == [LOST_PEERS]


def test_neither_many_short_steps_nor_a_pause_between_them_end_it(end: ProcessEnd) -> None:
    watch = StepWatch(0.1)
    watch.start()
    for _ in range(60):
        with watch:
            threading.Event().wait(0.005)
    threading.Event().wait(0.3)
    assert end.codes == []
    watch.close()


def test_only_a_watch_that_was_started_ends_a_process(end: ProcessEnd) -> None:
    with StepWatch(0.01):
        threading.Event().wait(0.1)
    assert end.codes == []
