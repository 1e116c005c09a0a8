"""Runs side by side: the settings in which they differ, their final figures, and their curves on one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.checkpoint.store import newest_committed
from psfleet.errors import BadJobError, UsageError
from psfleet.job.differences import differing
from psfleet.report import charts
from psfleet.report.attempts import earlier_report
from psfleet.report.charts import JointChart, Sample
from psfleet.report.formats import count_text, duration_text, number_text
from psfleet.report.html import template
from psfleet.report.schema import History, Point, Report

NUM_COLORS = 8
"""Colours of the page; further runs have the same ones in dashes."""
NOTHING = "–"

Row = tuple[str, tuple[str, ...]]
"""Name of a setting or figure, and its value in each run."""


@dataclass(frozen=True)
class ComparedRun:
    """What the folder of a run has: its job, its report (None: no attempt has ended), its curve.

    The job is that of the newest checkpoint: `job.json` may be that of an attempt that was refused.
    """

    label: str
    job: dict[str, Any]
    report: Report | None
    curve: tuple[Point, ...]

    @classmethod
    def read(cls, folder: Path) -> ComparedRun:
        """Reads a run folder.

        Raises:
            UsageError: It is none.
        """
        try:
            job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder}: no job.json can be read ({error}), expected the folder of a run") from error
        if not isinstance(job, dict):
            raise BadJobError(f"{folder / 'job.json'}: expected a resolved job as JSON")
        checkpoint = newest_committed(folder / "checkpoints")
        trained = checkpoint.extra.get("job") if checkpoint is not None else None
        job = trained if isinstance(trained, dict) else job
        curve = History(folder / History.FILE_NAME).curve()
        return cls(str(folder), job, earlier_report(folder), tuple(curve))


@dataclass(frozen=True)
class JointFigure:
    """A chart of all runs with its labels; `summary` describes it in a sentence."""

    name: str
    title: str
    y_label: str
    chart: JointChart | None
    summary: str


def settings(runs: Sequence[ComparedRun]) -> list[Row]:
    """The settings in which the jobs of runs differ."""
    return [(field, tuple(values)) for field, values in differing([run.job for run in runs]).items()]


def figures(runs: Sequence[ComparedRun]) -> list[Row]:
    """The final figures of runs: outcome, steps, metrics, loss, time, rates, gradients."""
    metrics = dict.fromkeys(name for run in runs if run.report is not None for name in run.report.eval)
    figure: dict[str, Callable[[Report], str]] = {
        "status": lambda report: report.status + (f" ({report.exit_code})" if report.exit_code else ""),
        "steps": lambda report: f"{count_text(report.final_step)} of {count_text(report.target_step)}",
        **{f"evaluation: {name}": _metric(name) for name in metrics},
        "last training loss": lambda report: number_text(report.loss),
        "time": lambda report: duration_text(report.seconds),
        "examples per second": lambda report: number_text(report.examples_per_sec),
        "median step time": lambda report: duration_text(report.step_secs.p50),
        "gradients used": lambda report: count_text(report.gradients.used),
        "gradients dropped": lambda report: count_text(report.gradients.dropped),
        "restarts": lambda report: count_text(report.restarts),
        "attempts": lambda report: count_text(len(report.attempts) or 1),
    }
    return [
        (name, tuple(NOTHING if run.report is None else text(run.report) for run in runs))
        for name, text in figure.items()
    ]


def render(runs: Sequence[ComparedRun]) -> str:
    """The page: settings, figures and curves of runs; self-contained."""
    return template("compare.html.j2").render(
        labels=[run.label for run in runs],
        settings=settings(runs),
        figures=figures(runs),
        charts=[
            _figure("loss", "Loss", "training loss", runs, lambda point: point.loss),
            _figure("rate", "Examples per second", "examples per second", runs, lambda point: point.examples_per_sec),
        ],
        num_colors=NUM_COLORS,
        box=charts,
    )


def _metric(name: str) -> Callable[[Report], str]:
    return lambda report: number_text(report.eval.get(name))


def _figure(
    name: str, title: str, y_label: str, runs: Sequence[ComparedRun], value: Callable[[Point], float]
) -> JointFigure:
    series: list[list[Sample]] = [[(float(point.step), value(point)) for point in run.curve] for run in runs]
    ends = [
        f"{run.label} ends at {number_text(samples[-1][1])} at step {samples[-1][0]:,.0f}"
        for run, samples in zip(runs, series, strict=True)
        if samples
    ]
    summary = f"{'; '.join(ends)}." if ends else "No run has recorded a step."
    return JointFigure(name, title, y_label, charts.joint_chart(series), summary)
