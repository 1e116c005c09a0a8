"""Callbacks of the chief: called in order beside training, which waits for none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.chief_samples import sample_job
from support.report_samples import DONE

from psfleet.callbacks import Callback, RunInfo
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.job.callback import CallbackSpec
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from worker_service.chief import callbacks as module
from worker_service.chief.callbacks import MAX_WAITING, Callbacks
from worker_service.chief.events import Events

WAIT_SECS = 20.0


class Recording(Callback):
    """Writes down its calls; waits at each step while `go` is not set."""

    def __init__(self, every_steps: int = 1) -> None:
        self.every_steps = every_steps
        self.calls: list[str] = []
        self.go = threading.Event()
        self.go.set()
        self.state = Path()

    def on_start(self, run: RunInfo) -> None:
        self.state = run.state
        self.calls.append(f"start {run.name} at {run.step}")

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.go.wait(WAIT_SECS)
        self.calls.append(f"step {step} loss {metrics['loss']}")

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(f"evaluated {step} {dict(metrics)}")

    def on_checkpoint(self, step: int, folder: Path | str) -> None:
        self.calls.append(f"saved {step} {type(folder).__name__} {folder}")

    def on_end(self, report: Report) -> None:
        self.calls.append(f"end {report.status}")


class Failing(Callback):
    """Fails at each step; may leave with `sys.exit`."""

    every_steps = 1

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        raise self._error


class Taking(Callback):
    """Empties the metrics that it gets."""

    every_steps = 1

    def on_step(self, step: int, metrics: Any) -> None:
        metrics.clear()

    def on_evaluate(self, step: int, metrics: Any) -> None:
        metrics.clear()


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path, sample_job())


def callbacks_of(tmp_path: Path, events: Events, *callbacks: Callback) -> Callbacks:
    specs = [CallbackSpec(use=f"watching:number_{index}") for index in range(len(callbacks))]
    return Callbacks(callbacks, events, RunInfo("sample", "sample-1", {}, tmp_path, tmp_path / "callbacks", 0), specs)


def test_a_callback_that_changes_its_metrics_changes_no_others(tmp_path: Path, events: Events) -> None:
    """The recorded ones decide which checkpoint is the best, and when training ends early."""
    recording, recorded = Recording(), {"accuracy": 0.5}
    callbacks = callbacks_of(tmp_path, events, Taking(), recording)
    callbacks.start(0)
    callbacks.step(1, {"loss": 1.0})
    callbacks.evaluated(1, recorded)
    callbacks.end(DONE)
    assert recording.calls[1:3] == ["step 1 loss 1.0", "evaluated 1 {'accuracy': 0.5}"]
    assert recorded == {"accuracy": 0.5}


def test_every_callback_is_called_in_the_order_of_what_happened(tmp_path: Path, events: Events) -> None:
    often, seldom = Recording(), Recording(every_steps=3)
    callbacks = callbacks_of(tmp_path, events, often, seldom)
    callbacks.start(0)
    for step in range(1, 5):
        callbacks.step(step, {"loss": 1.0 / step})
    callbacks.evaluated(4, {"accuracy": 0.5})
    callbacks.saved(4, Path("there"))
    callbacks.saved(4, StoreFolder("gs://bucket/there"))
    callbacks.end(DONE)
    assert often.calls == [
        "start sample at 0", "step 1 loss 1.0", "step 2 loss 0.5", f"step 3 loss {1 / 3}", "step 4 loss 0.25",
        "evaluated 4 {'accuracy': 0.5}", "saved 4 PosixPath there",
        "saved 4 str gs://bucket/there", "end done",
    ]  # fmt: skip
    assert [call for call in seldom.calls if call.startswith("step")] == ["step 1 loss 1.0", f"step 3 loss {1 / 3}"]
    assert often.state != seldom.state
    assert often.state.is_dir()
    assert events.all() == []


@pytest.mark.parametrize("error", [ValueError("no server"), SystemExit(0)])
def test_a_callback_that_fails_is_an_event_once_and_the_others_are_called(
    tmp_path: Path, events: Events, error: BaseException
) -> None:
    other = Recording()
    callbacks = callbacks_of(tmp_path, events, Failing(error), other)
    callbacks.start(7)
    for step in range(8, 11):
        callbacks.step(step, {"loss": 1.0})
    callbacks.end(DONE)
    assert len([call for call in other.calls if call.startswith("step")]) == 3
    [event] = events.all()
    assert event.kind == "callback_failed"
    assert event.cause.startswith(f"Failing.on_step() raised {type(error).__name__}: {error}")


def test_training_waits_for_no_callback_and_only_steps_are_dropped(tmp_path: Path, events: Events) -> None:
    slow = Recording()
    slow.go.clear()
    callbacks = callbacks_of(tmp_path, events, slow)
    callbacks.start(0)
    for step in range(1, 3 * MAX_WAITING):
        callbacks.step(step, {"loss": 1.0})
        callbacks.evaluated(step, {})
    slow.go.set()
    callbacks.end(DONE)
    assert len([call for call in slow.calls if call.startswith("evaluated")]) == 3 * MAX_WAITING - 1
    assert 0 < len([call for call in slow.calls if call.startswith("step")]) <= MAX_WAITING
    assert slow.calls[-1] == "end done"
    assert [event.cause for event in events.all()] == ["callbacks are slower than training: steps are dropped"]


def test_the_end_of_a_run_does_not_wait_for_a_callback_that_hangs(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "END_SECS", 0.01)
    hanging = Recording()
    hanging.go.clear()
    callbacks = callbacks_of(tmp_path, events, hanging)
    callbacks.start(0)
    callbacks.step(1, {"loss": 1.0})
    callbacks.end(DONE)
    assert "the callbacks did not return in 0.01 s, and are abandoned" in caplog.messages
    hanging.go.set()
    wait_until(lambda: "end done" in hanging.calls, WAIT_SECS, "the abandoned thread")


@pytest.mark.parametrize(
    ("happens", "calls"),
    [
        (lambda callbacks: callbacks.saved(4, Path("there")), ["start sample at 4", "saved 4 PosixPath there"]),
        (lambda callbacks: callbacks.evaluated(9, {}), ["start sample at 9", "evaluated 9 {}"]),
        (lambda callbacks: None, [f"start sample at {DONE.final_step}"]),
    ],
    ids=["a checkpoint of the fleet that a new chief joins", "the run was done before", "it fails before it trains"],
)
def test_the_start_comes_first_although_this_chief_does_not_train_yet(
    tmp_path: Path, events: Events, happens: Callable[[Callbacks], None], calls: list[str]
) -> None:
    callback = Recording()
    callbacks = callbacks_of(tmp_path, events, callback)
    happens(callbacks)
    callbacks.end(DONE)
    callbacks.start(10)
    assert callback.calls == [*calls, "end done"]


def test_without_callbacks_nothing_is_started(tmp_path: Path, events: Events) -> None:
    before = threading.active_count()
    callbacks = callbacks_of(tmp_path, events)
    callbacks.start(0)
    callbacks.step(1, {"loss": 1.0})
    callbacks.end(DONE)
    assert threading.active_count() == before
    assert not (tmp_path / "callbacks").exists()


def test_steps_that_are_made_again_after_a_rollback_are_reported_again(tmp_path: Path, events: Events) -> None:
    often, seldom = Recording(every_steps=10), Recording(every_steps=25)
    callbacks = callbacks_of(tmp_path, events, often, seldom)
    callbacks.start(0)
    for step in range(1, 51):
        callbacks.step(step, {"loss": 1.0})
    callbacks.start(20)
    for step in range(21, 61):
        callbacks.step(step, {"loss": 1.0})
    callbacks.end(DONE)
    assert steps_of(often) == [1, 10, 20, 30, 40, 50, 30, 40, 50, 60]
    assert steps_of(seldom) == [1, 25, 50, 25, 50]


def test_an_evaluation_of_an_earlier_step_reports_no_step_again(tmp_path: Path, events: Events) -> None:
    """Evaluations and checkpoints end while later steps are made."""
    callback = Recording(every_steps=10)
    callbacks = callbacks_of(tmp_path, events, callback)
    callbacks.start(0)
    for step in range(1, 30):
        callbacks.step(step, {"loss": 1.0})
        if step == 25:
            callbacks.evaluated(12, {})
            callbacks.saved(12, Path("there"))
            callbacks.start(25)
    callbacks.end(DONE)
    assert steps_of(callback) == [1, 10, 20]


def steps_of(callback: Recording) -> list[int]:
    """Of all calls of `on_step`."""
    return [int(call.split()[1]) for call in callback.calls if call.startswith("step")]
