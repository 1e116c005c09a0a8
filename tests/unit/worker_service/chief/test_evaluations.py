"""An evaluation of the chief runs beside its training, with the weights of its step, and never for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.chief_samples import sample_job

from psfleet.errors import DeadlineError, ProgramError
from psfleet.layout import Layout
from psfleet.polling import wait_until
from worker_service.chief import recorder as recorder_module
from worker_service.chief.evaluations import Evaluations
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.chief.storage import Storage

WAIT_SECS = 10.0


class HeldEvaluator:
    """An evaluator that returns its weight as the metric `w`, once the test releases it."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None

    def evaluate(self, values: Mapping[str, np.ndarray], global_step: int) -> dict[str, float]:
        """See `Evaluator`."""
        self.begun.release()
        assert self.released.acquire(timeout=WAIT_SECS)
        if self.error is not None:
            raise self.error
        assert values["w"] == global_step
        return {"w": float(values["w"])}


class Training:
    """A recorder whose steps a test makes; the weight of step n is n."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, max_waiting_bytes: int = 1 << 20) -> None:
        job = sample_job(evaluate={"every_steps": 10})
        self.evaluator = HeldEvaluator()
        self.events = Events(out, job)
        layout = Layout.plan([], [], [], 2, 4096)
        self.recorder = Recorder(out, job, layout, cast("Any", self.evaluator), Storage(self.events, 1.0))
        self.recorder._evaluation.evaluations._max_waiting_bytes = max_waiting_bytes
        self.recorder.start(0)
        self.step = 0
        monkeypatch.setattr(recorder_module, "local_values", lambda *_: {"w": np.array(self.step, np.float32)})

    def train_to(self, step: int) -> None:
        session: Any = SimpleNamespace(summaries=lambda batch: None, gradient_norm=lambda: None, measure_norm=bool)
        batch: Any = None
        while self.step < step:
            self.step += 1
            self.recorder.step(session, batch, self.step, loss=1.0, secs=0.01)

    def await_evaluation(self) -> None:
        assert self.evaluator.begun.acquire(timeout=WAIT_SECS), "no evaluation began"


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path, monkeypatch)


def test_steps_continue_while_an_evaluation_is_held_and_each_has_the_weights_of_its_step(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    training.train_to(10)
    training.await_evaluation()
    training.train_to(35)
    for _ in range(4):
        training.evaluator.released.release()
    training.recorder.evaluate(100, lambda: {"w": np.array(100, np.float32)})
    done = [record for record in caplog.records if getattr(record, "event", "") == "evaluation"]
    assert [(record.step, record.metrics) for record in done] == [  # type: ignore[attr-defined]
        (step, {"w": float(step)}) for step in (10, 20, 30, 100)
    ]
    assert training.events.all() == []


def test_evaluations_for_whose_weights_there_is_no_memory_are_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, monkeypatch, max_waiting_bytes=4)
    training.train_to(10)
    training.await_evaluation()
    training.train_to(45)
    for _ in range(3):
        training.evaluator.released.release()
    training.recorder.evaluate(100, lambda: {"w": np.array(100, np.float32)})
    assert training.recorder.metrics == {"w": 100.0}
    [event] = training.events.all()
    assert (event.kind, event.cause) == ("evaluation_skipped", "not evaluated in time: steps 30, 40")
    assert [message for message in caplog.messages if message.startswith("step 30 is not evaluated")]


def test_an_evaluation_returns_its_own_metrics_and_nothing_if_it_is_not_awaited(training: Training) -> None:
    weights = {"w": np.array(100, np.float32)}
    assert training.recorder.evaluate(100, lambda: weights, lambda: True) is None
    for _ in range(3):
        training.evaluator.released.release()
    assert training.recorder.evaluate(100, lambda: weights) == {"w": 100.0}
    assert training.recorder.evaluate(100, dict) == {}
    assert training.recorder.metrics == {"w": 100.0}


def test_evaluations_that_take_longer_than_their_interval_do_not_pile_up(tmp_path: Path) -> None:
    now, released, seen = [0.0], threading.Semaphore(0), []

    def take(step: int, values: Mapping[str, np.ndarray]) -> None:
        assert released.acquire(timeout=WAIT_SECS)
        seen.append(step)

    events = Events(tmp_path, sample_job())
    evaluations = Evaluations(take, events, 600.0, lambda: now[0])
    for step in range(10, 100, 10):
        evaluations.begin(step, dict)
        now[0] += 25.0
    for _ in range(9):
        released.release()
    evaluations.finish()
    assert seen == [10, 20]
    assert [event.cause for event in events.all()] == ["not evaluated in time: 7 steps from 30 to 90"]


def test_a_checkpoint_is_read_when_its_turn_comes_and_a_skipped_one_is_named(tmp_path: Path) -> None:
    """Its weights take no memory while it waits, and the chief can delete one that is skipped."""
    now, released, read, skipped = [0.0], threading.Semaphore(0), [], []

    def take(step: int, values: Mapping[str, np.ndarray]) -> None:
        assert released.acquire(timeout=WAIT_SECS)

    def load(step: int) -> dict[str, np.ndarray]:
        read.append(step)
        return {"w": np.zeros(1 << 20)}

    events = Events(tmp_path, sample_job())
    evaluations = Evaluations(take, events, 600.0, lambda: now[0], max_waiting_bytes=1, on_skipped=skipped.append)
    for step in (10, 20, 30, 40):
        evaluations.begin(step, partial(load, step), is_saved=True)
        now[0] += 15.0
    assert skipped == [40]
    wait_until(lambda: read == [10], WAIT_SECS, "the first evaluation")
    for _ in range(3):
        released.release()
    evaluations.finish()
    assert read == [10, 20, 30]
    evaluations.begin(50, partial(load, 50), is_saved=True)
    evaluations.begin(60, partial(load, 60), is_saved=True)
    # Those that wait are skipped before the one that runs is released.
    evaluations.finish_running(lambda: bool(released.release()))
    assert skipped == [40, 60]


def test_a_new_generation_waits_only_for_the_evaluation_that_runs(training: Training) -> None:
    training.train_to(10)
    training.await_evaluation()
    training.train_to(35)
    training.evaluator.released.release()
    training.recorder.finish_evaluation(lambda: False)
    assert training.recorder.metrics == {"w": 10.0}
    [event] = training.events.all()
    assert event.cause.endswith("steps 20, 30")


def test_a_run_that_is_over_does_not_wait_for_an_evaluation(training: Training) -> None:
    training.train_to(10)
    training.await_evaluation()
    assert not training.recorder.finish_evaluation(lambda: True)
    training.evaluator.released.release()
    assert training.recorder.finish_evaluation(lambda: False)


def test_the_next_boundary_after_an_evaluation_is_evaluated(training: Training) -> None:
    for step in (10, 20):
        training.train_to(step)
        training.await_evaluation()
        training.evaluator.released.release()
        training.recorder.finish_evaluation(lambda: False)
    assert training.recorder.metrics == {"w": 20.0}
    assert training.events.all() == []


def test_an_evaluation_that_fails_ends_training_at_a_following_step(training: Training) -> None:
    training.evaluator.error = ProgramError("evaluate() raised ValueError: boom")
    training.train_to(10)
    training.await_evaluation()
    training.evaluator.released.release()
    evaluations = training.recorder._evaluation.evaluations
    wait_until(lambda: evaluations._running is None, WAIT_SECS, "the end of the evaluation")
    with pytest.raises(ProgramError, match="boom") as caught:
        training.train_to(11)
    assert caught.value.exit_code == 70


def test_the_last_evaluation_waits_for_the_one_before(training: Training) -> None:
    training.train_to(10)
    training.await_evaluation()
    training.evaluator.released.release()
    training.evaluator.released.release()
    training.recorder.evaluate(100, lambda: {"w": np.array(100, np.float32)})
    assert training.recorder.metrics == {"w": 100.0}


@pytest.mark.parametrize("wait", [Evaluations.check, Evaluations.finish], ids=["in a step", "at the end"])
def test_an_evaluation_that_never_ends_ends_the_run(tmp_path: Path, wait: Callable[[Evaluations], None]) -> None:
    now, never = [0.0], threading.Event()

    def hang(step: int, values: Mapping[str, np.ndarray]) -> None:
        never.wait(WAIT_SECS)

    evaluations = Evaluations(hang, Events(tmp_path, sample_job()), 600.0, lambda: now[0])
    evaluations.begin(20, dict)
    now[0] = 599.0
    evaluations.check()
    now[0] = 600.0
    with pytest.raises(DeadlineError, match="gave up after 600 s waiting for the evaluation at step 20") as caught:
        wait(evaluations)
    assert caught.value.exit_code == 75
    never.set()
