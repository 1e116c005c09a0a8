"""What the chief records of the metrics of the training batches: in TensorBoard, in the run folder, in the report."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.chief_samples import sample_context, sample_job, sample_storage, scalars

from psfleet.layout import Layout, TensorSpec
from psfleet.report.training_metrics import TrainingMetricsLog
from worker_service.chief.recorder import Recorder
from worker_service.chief.training_metrics_recorder import EVERY_SECS, NUM_FIRST, TrainingMetricsRecorder

LAYOUT = Layout.plan([], [TensorSpec("total", (), is_saved=False)], [], 2, 4096)
NO_METRICS = Layout.plan([], [TensorSpec("mean", ())], [], 2, 4096, tables=[("vocabulary", "digest")])


class Evaluator:
    """Returns the state as a metric.

    Attributes:
        threads: Those that have called it.
    """

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def training_metrics(self, values: Any) -> dict[str, float]:
        """See `Evaluator`."""
        self.threads.append(threading.current_thread())
        return {"total": float(values["total"])}


def recorder_of(out: Path, evaluator: Any, layout: Layout = LAYOUT, every: int = 1, **sections: Any) -> Recorder:
    """A recorder of summaries at each step, or each few steps."""
    job = sample_job(summaries={"every_steps": every}, **sections)
    return Recorder(out, job, layout, evaluator, sample_storage(sample_context(out, job=job)))


def train(recorder: Recorder, *steps: int, torn: int = 0) -> None:
    """Ends steps after which the total is ten times the step; in one of them the shards are at different steps."""
    batch: Any = None
    for step in steps:
        total = np.full(LAYOUT.state.size // 4, 10.0 * step, np.float32).view(np.uint8)
        session: Any = SimpleNamespace(
            summaries=lambda batch: None,
            gradient_norm=lambda: None,
            measure_norm=bool,
            state=lambda total=total: total,
            is_of_one_step=step != torn,
        )
        recorder.step(session, batch, step, loss=0.5, secs=0.1)


def recorded(out: Path) -> list[tuple[int, int, float]]:
    """Step, generation and total of each line of the file."""
    lines = TrainingMetricsLog(out / TrainingMetricsLog.FILE_NAME).read()
    return [(line.step, line.generation, line.metrics["total"]) for line in lines]


def test_metrics_of_shards_at_different_steps_are_left_out(tmp_path: Path) -> None:
    evaluator = Evaluator()
    recorder = recorder_of(tmp_path, evaluator)
    recorder.start(0)
    train(recorder, 1, 2, 3, torn=2)
    recorder.close()
    found = scalars(tmp_path)
    assert (found["train/total"], found["train/loss"]) == ([10.0, 30.0], [0.5, 0.5, 0.5])
    assert threading.current_thread() not in evaluator.threads, "the fleet waits for this thread"


def test_metrics_that_are_not_of_a_whole_interval_are_left_out(tmp_path: Path) -> None:
    """Workers begin from zeros at steps 20 and 40; the chief was late at step 40, and the fleet restored step 70."""
    recorder = recorder_of(tmp_path, Evaluator(), every=20)
    recorder.begin(1, 0)
    recorder.start(0)
    train(recorder, 19, 20, 39, 41, 60)
    recorder.begin(2, 70)
    recorder.start(70)
    train(recorder, 71, 80, 99, 100)
    recorder.close()
    assert [step for step, _, _ in recorded(tmp_path)] == [20, 60, 100]
    assert len(scalars(tmp_path)["train/loss"]) == 5, "all other summaries are written"


def test_summaries_of_averaging_mode_are_at_the_ends_of_rounds_at_which_its_metrics_begin_anew(tmp_path: Path) -> None:
    update = {"mode": "averaging", "local_steps": 8}
    recorder = recorder_of(tmp_path, Evaluator(), every=20, update=update, train={"steps": 96, "batch_size": 8})
    recorder.begin(1, 0)
    recorder.start(0)
    train(recorder, *range(8, 97, 8))
    recorder.close()
    assert [step for step, _, _ in recorded(tmp_path)] == [24, 48, 72, 96]


def test_the_report_has_those_of_the_last_step_and_the_file_has_them_too(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, Evaluator())
    assert recorder.newest_training_metrics() == {}
    recorder.begin(3, 0)
    recorder.start(0)
    train(recorder, 1, 2, 3)
    assert recorder.newest_training_metrics() == {"total": 30.0}
    assert recorded(tmp_path)[-1] == (3, 3, 30.0)
    recorder.close()


def test_a_chief_that_replaces_another_knows_the_metrics_of_the_file(tmp_path: Path) -> None:
    first = recorder_of(tmp_path, Evaluator())
    first.start(0)
    train(first, 1)
    first.newest_training_metrics()
    first.close()
    assert recorder_of(tmp_path, None).newest_training_metrics() == {"total": 10.0}


def test_a_run_that_continues_without_metrics_shows_none_of_before(tmp_path: Path) -> None:
    """In async and ssp mode, or with a program that has none any more."""
    first = recorder_of(tmp_path, Evaluator())
    first.start(0)
    train(first, 1)
    first.close()
    without = recorder_of(tmp_path, Evaluator(), NO_METRICS)
    without.begin(2, 0)
    without.start(1)
    train(without, 2)
    assert without.newest_training_metrics() == {}
    without.close()
    assert [step for step, _, _ in recorded(tmp_path)] == [1]
    found = scalars(tmp_path)
    assert (found["train/total"], found["train/loss"]) == ([10.0], [0.5, 0.5])


def test_the_curve_is_without_what_a_rollback_has_undone(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, Evaluator())
    for generation, began, steps in ((1, 0, (4, 8)), (2, 4, (9,))):
        recorder.begin(generation, began)
        for step in steps:
            recorder.start(step - 1)
            train(recorder, step)
            recorder.newest_training_metrics()
    recorder.close()
    curve = TrainingMetricsLog(tmp_path / TrainingMetricsLog.FILE_NAME).curve()
    assert [(each.step, each.generation) for each in curve] == [(4, 1), (9, 2)]


def test_a_long_fast_run_does_not_fill_the_file(tmp_path: Path) -> None:
    now = 0.0
    storage = sample_storage(sample_context(tmp_path))
    recorder = TrainingMetricsRecorder(tmp_path, LAYOUT, None, storage, clock=lambda: now)
    for step in range(1, NUM_FIRST + 101):
        now = step * EVERY_SECS / 8
        recorder.record(step, 1, 0, {"total": float(step)})
    steps = [step for step, _, _ in recorded(tmp_path)]
    assert steps == [*range(1, NUM_FIRST + 1), *range(NUM_FIRST + 8, NUM_FIRST + 101, 8)]
    recorder.flush()
    assert recorded(tmp_path)[-1] == (NUM_FIRST + 100, 1, NUM_FIRST + 100.0)
    recorder.flush()
    assert len(recorded(tmp_path)) == len(steps) + 1
