"""A step whose operations never return ends its worker, and no other does."""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.process_end import ProcessEnd

from psfleet.errors import LOST_PEERS
from psfleet.job.job import parse_job
from worker_service import step_sessions, step_watch
from worker_service.step_sessions import StepSessions
from worker_service.step_watch import StepWatch


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> ProcessEnd:
    found = ProcessEnd()
    monkeypatch.setattr(step_watch, "LOOK_SECS", 0.01)
    monkeypatch.setattr("worker_service.step_watch.os._exit", found)
    return found


def test_a_step_that_does_not_return_ends_its_worker_with_75(end: ProcessEnd, caplog: pytest.LogCaptureFixture) -> None:
    watch = StepWatch(0.05, threading.Event())
    watch.start()
    with watch:
        end.wait("the end")
    assert end.codes == [LOST_PEERS]
    assert "gave up after 0.05 s waiting for the operations of a step to return" in caplog.text


def test_a_session_that_is_closed_does_not_end_the_watch_of_a_step_that_runs(end: ProcessEnd) -> None:
    is_over = threading.Event()
    watch = StepWatch(0.05, is_over)
    watch.start()
    with watch:
        is_over.set()
        end.wait("the end")
    assert end.codes == [LOST_PEERS]


def test_a_step_that_runs_keeps_its_time_when_its_session_is_closed(end: ProcessEnd) -> None:
    is_over = threading.Event()
    # Of 1,000 looks, of which there are 100 in a second.
    watch = StepWatch(10.0, is_over)
    watch.start()
    with watch:
        threading.Event().wait(0.05)
        is_over.set()
        threading.Event().wait(0.3)
    assert end.codes == []


def test_neither_many_short_steps_nor_a_pause_between_them_end_it(end: ProcessEnd) -> None:
    is_over = threading.Event()
    watch = StepWatch(0.1, is_over)
    watch.start()
    for _ in range(60):
        with watch:
            threading.Event().wait(0.005)
    threading.Event().wait(0.3)
    assert end.codes == []
    is_over.set()


def test_only_a_watch_that_was_started_ends_a_process(end: ProcessEnd) -> None:
    with StepWatch(0.01, threading.Event()):
        threading.Event().wait(0.1)
    assert end.codes == []


def test_a_call_that_does_not_return_is_found_while_another_thread_makes_steps(
    end: ProcessEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As replicas in one graph do in async mode, which share the sessions."""
    fields = {"name": "sample", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    job = parse_job({**fields, "train": {"steps": 1, "batch_size": 1}})
    monkeypatch.setattr(step_sessions, "SILENT_SECS", 0.1 - job.round_secs)
    step: Any = SimpleNamespace(graph=tf.Graph())
    with closing(StepSessions("", step, job, v1.ConfigProto(), v1.RunOptions())) as sessions:
        others, hung = sessions.watch(), sessions.watch()

        def make_steps() -> None:
            while not end.codes:
                with others:
                    threading.Event().wait(0.005)

        steps = threading.Thread(target=make_steps)
        steps.start()
        with hung:
            end.wait("the end")
        steps.join()
    assert end.codes == [LOST_PEERS]
