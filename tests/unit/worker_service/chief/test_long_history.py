"""What a chief reads of a run of days, at its start and after a loss: it needs no more memory than of a short run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.checkpoint_samples import random_values
from support.chief_samples import sample_context, sample_storage
from support.peak_memory import peak_bytes

from psfleet.layout import Layout, TensorSpec
from psfleet.report.history import History, Point
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog
from worker_service.chief.events import Events
from worker_service.chief.recovery import Recovery
from worker_service.chief.run_attempt import Attempt
from worker_service.chief.training_metrics_recorder import TrainingMetricsRecorder

LAYOUT = Layout.plan([], [TensorSpec("total", (), is_saved=False)], [], 2, 4096)


def write(out: Path, number: int) -> None:
    """The files of a run with so many points; the last one is of step `number`, and 7 s of training."""
    with (out / History.FILE_NAME).open("w") as history, (out / TrainingMetricsLog.FILE_NAME).open("w") as metrics:
        for step in range(1, number + 1):
            point = Point(
                time=1.0, step=step, generation=1, loss=1.0, step_secs=1.0, examples_per_sec=1.0, training_seconds=7.0
            )
            history.write(f"{point.model_dump_json()}\n")
            found = TrainingMetrics(time=1.0, step=step, generation=1, metrics={"auc": float(step)})
            metrics.write(f"{found.model_dump_json()}\n")


def newest_step(out: Path, decides: bool) -> float:
    context = sample_context(out)
    recovery = Recovery(context, lambda: random_values(1), {}, Events(out, context.job))
    point = recovery._last_point(decides)
    assert point is not None
    return point.step


def newest_metric(out: Path) -> float:
    return TrainingMetricsRecorder(out, LAYOUT, None, sample_storage(sample_context(out))).newest["auc"]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        pytest.param(lambda out: newest_step(out, decides=False), 10_000, id="after a loss"),
        pytest.param(lambda out: newest_step(out, decides=True), 10_000, id="after a loss without a checkpoint"),
        pytest.param(newest_metric, 10_000, id="training metrics"),
        pytest.param(lambda out: Attempt(out, 0.0, "chief").trained_secs(), 7.0, id="time of training"),
    ],
)
def test_a_chief_reads_only_what_it_needs(tmp_path: Path, read: Callable[[Path], float], expected: float) -> None:
    peaks = []
    # The first call makes what pydantic and Python keep.
    for number in (1_000, 1_000, 10_000):
        write(tmp_path, number)
        peaks.append(peak_bytes(partial(read, tmp_path)))
    assert peaks[2] < 2 * peaks[1]
    assert read(tmp_path) == expected
