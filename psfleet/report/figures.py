"""The line charts of a run: loss, metrics, learning rate, gradient norm and step times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from psfleet.report import charts
from psfleet.report.charts import Level, LineChart, Sample
from psfleet.report.formats import number_text
from psfleet.report.history import Point
from psfleet.report.schema import BestInfo, Evaluation, Report
from psfleet.report.training_metrics import MEAN_LOSS, TrainingMetrics

LOSS = "loss"
"""Name of the mean loss among the metrics of an evaluation."""


@dataclass(frozen=True)
class Figure:
    """A line chart with its labels; `summary` describes it in a sentence, `legend` names the curves of a pair."""

    name: str
    title: str
    y_label: str
    chart: LineChart | None
    summary: str
    legend: tuple[str, ...] = ()


def figures(
    report: Report,
    curve: Sequence[Point],
    evaluations: Sequence[Evaluation] = (),
    training: Sequence[TrainingMetrics] = (),
) -> list[Figure]:
    """The charts of a run; those of what was not recorded are left out, except loss and step times.

    Args:
        report: Of the run.
        curve: Of the training, by ascending step.
        evaluations: By ascending step.
        training: By ascending step.
    """
    return [
        *_loss_figures(curve),
        *_metric_figures(evaluations, training, report.best),
        *_optional("learning-rate", "Learning rate", [(point.step, point.learning_rate) for point in curve]),
        *_optional("gradient-norm", "Gradient norm", [(point.step, point.gradient_norm) for point in curve]),
        _step_figure(report, curve),
    ]


def _metric_figures(
    evaluations: Sequence[Evaluation], training: Sequence[TrainingMetrics], best: BestInfo | None
) -> Iterator[Figure]:
    """One chart for each metric, of evaluation and training, with a line at the best checkpoint's value."""
    evaluated = metric_curves(evaluations)
    trained = {LOSS if name == MEAN_LOSS else name: samples for name, samples in metric_curves(training).items()}
    for index, name in enumerate(sorted({*evaluated, *trained})):
        both = {"evaluation": evaluated.get(name, []), "training": trained.get(name, [])}
        kinds = [kind for kind, samples in both.items() if samples]
        first, *second = (both[kind] for kind in kinds)
        levels = []
        if best is not None and best.metric == name:
            levels = [Level(best.value, f"best {number_text(best.value)} at step {best.step:,}", above=True)]
        chart = charts.line_chart(first, levels, *second)
        summary = _describe("values", "", first)
        if second:
            summary = f"Evaluation: {summary} Training: {_describe('values', '', second[0])}"
        title = f"{' and '.join(kinds).capitalize()}: {name}"
        yield Figure(f"metric-{index}", title, name, chart, summary, tuple(kinds) if second else ())


def metric_curves(records: Iterable[Evaluation | TrainingMetrics]) -> dict[str, list[Sample]]:
    """The values of each metric by ascending step, of records by ascending step."""
    found: dict[str, list[Sample]] = {}
    for each in records:
        for name, value in each.metrics.items():
            found.setdefault(name, []).append((float(each.step), value))
    return found


def _optional(name: str, title: str, recorded: Sequence[tuple[int, float | None]]) -> Iterator[Figure]:
    """The chart of a value that not every run records."""
    samples = [(float(step), value) for step, value in recorded if value is not None]
    if samples:
        chart = charts.line_chart(samples)
        yield Figure(name, title, title.lower(), chart, _describe("values", "", samples))


def _loss_figures(curve: Sequence[Point]) -> Iterator[Figure]:
    """The chart of the loss, or one for each of several losses."""
    names = sorted({name for point in curve for name in point.losses})
    for index, name in enumerate(names):
        samples = [(float(point.step), point.losses[name]) for point in curve if name in point.losses]
        chart = charts.line_chart(samples)
        yield Figure(f"loss-{index}", f"Loss: {name}", f"{name} loss", chart, _describe("losses", "", samples))
    if not names:
        samples = [(float(point.step), point.loss) for point in curve]
        chart = charts.line_chart(samples)
        yield Figure("loss", "Loss", "training loss", chart, _describe("losses", "", samples))


def _step_figure(report: Report, curve: Sequence[Point]) -> Figure:
    """Step times in milliseconds, or in seconds when the median step takes one or more."""
    known = sorted(point.step_secs for point in curve if charts.is_drawable(point.step_secs))
    median = report.step_secs.p50 if report.step_secs.p50 is not None else known[len(known) // 2] if known else 0.0
    unit, per_sec = ("s", 1.0) if median >= 1 else ("ms", 1e3)
    samples = [(float(point.step), point.step_secs * per_sec) for point in curve]
    quantiles = ((report.step_secs.p50, "median", False), (report.step_secs.p95, "95th percentile", True))
    levels = [
        Level(secs * per_sec, f"{name} {number_text(secs * per_sec)} {unit}", above)
        for secs, name, above in quantiles
        if secs is not None
    ]
    chart = charts.line_chart(samples, levels)
    summary = _describe("step times", f" {unit}", samples)
    return Figure("step-times", "Step times", f"time of a step, {unit}", chart, summary)


def _describe(what: str, unit: str, samples: Sequence[Sample]) -> str:
    """Describes a series in a sentence, also if it cannot be drawn."""
    if not samples:
        return f"No {what} were recorded."
    finite = [sample for sample in samples if charts.is_drawable(sample[1])]
    if not finite:
        return f"None of the {len(samples):,} recorded {what} is a finite number."
    (first_x, first_y), (last_x, last_y) = finite[0], finite[-1]
    text = f"{number_text(first_y)}{unit} at step {first_x:,.0f}"
    if len(finite) > 1:
        values = [y for _, y in finite]
        text = f"From {text} to {number_text(last_y)}{unit} at step {last_x:,.0f}"
        text += f"; lowest {number_text(min(values))}{unit}, highest {number_text(max(values))}{unit}"
    if len(finite) < len(samples):
        text += f"; {len(samples) - len(finite):,} of {len(samples):,} are not finite and are omitted"
    return text + "."
