"""The contender `psfleet`: `psfleet train` on this machine, and what the files of its run folder say."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import ChildError, Children
from benchmarks.contenders import START_SECS, Measures, python, run_secs, with_cpu
from benchmarks.cpu_time import CpuTime, cpu_time
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.report.history import History
from psfleet.report.schema import Report

FOLDER = Path(__file__).parent
JOB = FOLDER / "mlp" / "job.yaml"
WAITING_JOB = FOLDER / "simulated" / "job.yaml"
"""Of a workload with `shapes`."""
COLOCATED = (f"fleet.ps={NUM_WORKERS}", "fleet.colocate=true")
"""`--set` of a run with a ps in each worker."""


@dataclass(frozen=True)
class Window:
    """The steps of a run after its warm-up, between two points of its history: Unix times, and steps."""

    began: float
    ended: float
    steps: int

    @property
    def mean_ms(self) -> float:
        """Mean milliseconds of a global step."""
        return (self.ended - self.began) * 1000 / self.steps


def psfleet(
    workload: Workload, overrides: Sequence[str] = (), *, gradients: int = NUM_WORKERS, start_secs: float = START_SECS
) -> Measures:
    """Trains by `psfleet train`; in mode async the steps are global ones, of one gradient each.

    Args:
        workload: What to train.
        overrides: Further `key=value` texts for `--set`.
        gradients: Number of gradients in a step, except in mode async.
        start_secs: Until all processes train.
    """
    flags = [part for setting in (*settings(workload), *overrides) for part in ("--set", setting)]
    job = WAITING_JOB if workload.shapes else JOB
    with (
        tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out,
        Children() as children,
        cpu_time(children.pids) as cpu,
    ):
        child = children.start("psfleet", python("psfleet", "train", str(job), "--out", out, "--fresh", *flags))
        children.wait(child, "training", start_secs + run_secs(workload))
        return measured(Path(out), workload, cpu, gradients)


def settings(workload: Workload) -> list[str]:
    """The workload as `key=value` texts."""
    shapes = [list(shape) for shape in workload.shapes]
    model = [f"options.shapes={shapes}", f"options.wait_ms={workload.wait_ms}"]
    return [
        *(model if workload.shapes else [f"options.hidden={workload.hidden}"]),
        f"optimizer.name={workload.optimizer}",
        f"optimizer.learning_rate={LEARNING_RATE}",
        f"train.steps={workload.total_steps}",
        f"train.batch_size={workload.batch_size}",
    ]


def measured(out: Path, workload: Workload, cpu: CpuTime, gradients: int = NUM_WORKERS) -> Measures:
    """The measures of a run whose folder is `out`.

    The median step of a report is over all steps, those of the warm-up included. In mode async it is the chief's alone,
    so the mean over the window stands for it.

    Args:
        gradients: Number of gradients in a step, except in mode async.
    """
    report = read_report(out, workload.total_steps)
    window = window_of(out, workload)
    p50 = report.step_secs.p50
    if p50 is None:
        raise ChildError("psfleet's report: step_secs.p50 is null, expected a number")
    is_async = report.mode == "async"
    measures = {"step_ms": window.mean_ms if is_async else p50 * 1000, "mean_ms": window.mean_ms}
    return with_cpu(measures, cpu, window.began, window.ended, window.steps, 1 if is_async else gradients)


def read_report(out: Path, steps: int) -> Report:
    """The report of a run that is done.

    Raises:
        ChildError: The run did not end at that step.
    """
    report = Report.read(out)
    if report.status != "done" or report.final_step < steps:
        raise ChildError(
            f"psfleet's report: status {report.status}, final_step {report.final_step}, expected done and {steps}"
        )
    return report


def window_of(out: Path, workload: Workload) -> Window:
    """The timed steps in the history of a run.

    Raises:
        ChildError: The history has fewer than two points after the warm-up.
    """
    points = [each for each in History(out / History.FILE_NAME).curve() if each.step >= workload.warmup_steps]
    if len(points) < 2:
        raise ChildError(
            f"psfleet's history has {len(points)} points after the {workload.warmup_steps} steps of the warm-up, "
            "expected at least 2: measure more steps"
        )
    first, last = points[0], points[-1]
    return Window(first.time, last.time, last.step - first.step)
