"""Runs side by side: the settings in which they differ, their final figures, and their curves on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psfleet.job.differences import differing
from psfleet.report import charts
from psfleet.report.attempts import earlier_report
from psfleet.report.charts import JointChart, Sample
from psfleet.report.figures import metric_curves
from psfleet.report.formats import count_text, duration_text, number_text
from psfleet.report.history import History, Point
from psfleet.report.html import template
from psfleet.report.json_lines import DRAWN_RECORDS
from psfleet.report.schema import EvaluationLog, Report
from psfleet.report.shown_job import newest_job, trained_job
from psfleet.report.training_metrics import TrainingMetricsLog

NUM_COLORS = 8
"""Colours of the page; further runs have the same ones in dashes."""
NOTHING = "–"

ONLY_IF_ANY = {"gradients dropped": "0", "restarts": "0", "attempts": "1"}
"""Figures that are left out if all runs have this value."""

Row = tuple[str, tuple[str, ...]]
"""Name of a setting or figure, and its value in each run."""


@dataclass(frozen=True)
class ComparedRun:
    """What the folder of a run has: its job, its report (None: no attempt has ended), its curves.

    The job is that of the newest checkpoint: `job.json` may be that of an attempt that was refused.
    """

    label: str
    job: dict[str, Any]
    report: Report | None
    curve: tuple[Point, ...]
    evaluations: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    training: Mapping[str, Sequence[Sample]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> ComparedRun:
        """Reads a run folder.

        Raises:
            UsageError: It is none.
            BadJobError: Its job cannot be read.
        """
        job = trained_job(folder) or newest_job(folder)
        curve = History(folder / History.FILE_NAME).curve(DRAWN_RECORDS)
        evaluations = metric_curves(EvaluationLog(folder / EvaluationLog.FILE_NAME).curve(DRAWN_RECORDS))
        training = metric_curves(TrainingMetricsLog(folder / TrainingMetricsLog.FILE_NAME).curve(DRAWN_RECORDS))
        return cls(str(folder), dict(job), earlier_report(folder), tuple(curve), evaluations, training)


@dataclass(frozen=True)
class JointFigure:
    """A chart of all runs with its labels; `summary` describes it in a sentence."""

    name: str
    title: str
    y_label: str
    chart: JointChart | None
    summary: str


def settings(runs: Sequence[ComparedRun]) -> list[Row]:
    """The settings in which the jobs of runs differ; not their names if the folders have the same ones."""
    found = differing([run.job for run in runs])
    if found.get("name") == [Path(run.label).name for run in runs]:
        del found["name"]
    return [(name, tuple(values)) for name, values in found.items()]


def figures(runs: Sequence[ComparedRun]) -> list[Row]:
    """The final figures of runs: outcome, steps, metrics, loss, time, rates, gradients.

    Not those of `ONLY_IF_ANY` if no run has any.
    """
    reports = [run.report for run in runs if run.report is not None]
    evaluated = dict.fromkeys(name for report in reports for name in report.eval)
    trained = dict.fromkeys(name for report in reports for name in report.training_metrics)
    figure: dict[str, Callable[[Report], str]] = {
        "status": lambda report: report.status + (f" ({report.exit_code})" if report.exit_code else ""),
        "steps": lambda report: f"{count_text(report.final_step)} of {count_text(report.target_step)}",
        **{f"evaluation: {name}": _metric("eval", name) for name in evaluated},
        **{f"training: {name}": _metric("training_metrics", name) for name in trained},
        "last training loss": lambda report: number_text(report.loss),
        "time": lambda report: duration_text(report.seconds),
        "examples per second": lambda report: number_text(report.examples_per_sec),
        "median step time": lambda report: duration_text(report.step_secs.p50),
        "gradients used": lambda report: count_text(report.gradients.used),
        "gradients dropped": lambda report: count_text(report.gradients.dropped),
        "restarts": lambda report: count_text(report.restarts),
        "attempts": lambda report: count_text(len(report.attempts) or 1),
    }
    rows = [
        (name, tuple(NOTHING if run.report is None else text(run.report) for run in runs))
        for name, text in figure.items()
    ]
    return [(name, values) for name, values in rows if set(values) - {NOTHING, ONLY_IF_ANY.get(name, NOTHING)}]


def render(runs: Sequence[ComparedRun]) -> str:
    """The page: settings, figures and curves of runs; self-contained."""
    return template("compare.html.j2").render(
        labels=[run.label for run in runs],
        settings=settings(runs),
        figures=figures(runs),
        charts=list(_charts(runs)),
        num_colors=NUM_COLORS,
        box=charts,
    )


def _metric(section: str, name: str) -> Callable[[Report], str]:
    """The value of a metric in a field of the report."""
    return lambda report: number_text(getattr(report, section).get(name))


def _charts(runs: Sequence[ComparedRun]) -> Iterator[JointFigure]:
    """Loss, metrics and rate; those of a metric only if a run has it."""
    losses = [[(float(point.step), point.loss) for point in run.curve] for run in runs]
    yield _figure("loss", "Loss", "training loss", runs, losses)
    for kind, curves in (
        ("evaluation", [run.evaluations for run in runs]),
        ("training", [run.training for run in runs]),
    ):
        for index, name in enumerate(sorted({name for each in curves for name in each})):
            title = f"{kind.capitalize()}: {name}"
            yield _figure(f"{kind}-{index}", title, name, runs, [each.get(name, ()) for each in curves])
    rates = [[(float(point.step), point.examples_per_sec) for point in run.curve] for run in runs]
    yield _figure("rate", "Examples per second", "examples per second", runs, rates)


def _figure(
    name: str, title: str, y_label: str, runs: Sequence[ComparedRun], series: Sequence[Sequence[Sample]]
) -> JointFigure:
    # A run that has just begun has nothing to compare.
    first_end = min((samples[-1][0] for samples in series if len(samples) > 1), default=0.0)
    ends = [_end(run.label, samples, first_end) for run, samples in zip(runs, series, strict=True) if samples]
    summary = f"{'; '.join(ends)}." if ends else "No run has recorded a step."
    return JointFigure(name, title, y_label, charts.joint_chart(series), summary)


def _end(label: str, samples: Sequence[Sample], first_end: float) -> str:
    """The end of a run's curve, and its value where the shortest curve ends."""
    step, value = samples[-1]
    text = f"{label} ends at {number_text(value)} at step {step:,.0f}"
    before = [sample for sample in samples if sample[0] <= first_end]
    if step == first_end or not before:
        return text
    return f"{text}, and has {number_text(before[-1][1])} at step {before[-1][0]:,.0f}"
