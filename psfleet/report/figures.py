"""The line charts of a run: loss, evaluations, learning rate, gradient norm and step times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psfleet.report import charts
from psfleet.report.charts import Level, LineChart
from psfleet.report.formats import number_text
from psfleet.report.schema import BestInfo, Evaluation, Point, Report


@dataclass(frozen=True)
class Figure:
    """A line chart with its labels; `summary` describes it in a sentence."""

    name: str
    title: str
    y_label: str
    chart: LineChart | None
    summary: str


def figures(report: Report, curve: Sequence[Point], evaluations: Sequence[Evaluation]) -> list[Figure]:
    """The charts of a run; those of what was not recorded are left out, except loss and step times.

    Args:
        report: Of the run.
        curve: Of the training, by ascending step.
        evaluations: By ascending step.
    """
    return [
        _loss_figure(curve),
        *_evaluation_figures(evaluations, report.best),
        *_optional("learning-rate", "Learning rate", [(point.step, point.learning_rate) for point in curve]),
        *_optional("gradient-norm", "Gradient norm", [(point.step, point.gradient_norm) for point in curve]),
        _step_figure(report, curve),
    ]


def _evaluation_figures(evaluations: Sequence[Evaluation], best: BestInfo | None) -> Iterator[Figure]:
    """One chart for each metric, with a line at the best checkpoint's value."""
    for index, name in enumerate(sorted({name for each in evaluations for name in each.metrics})):
        samples = [(float(each.step), each.metrics[name]) for each in evaluations if name in each.metrics]
        levels = []
        if best is not None and best.metric == name:
            levels = [Level(best.value, f"best {number_text(best.value)} at step {best.step:,}", above=True)]
        chart = charts.line_chart(samples, levels)
        summary = _describe("values", "", samples, chart)
        yield Figure(f"evaluation-{index}", f"Evaluation: {name}", name, chart, summary)


def _optional(name: str, title: str, recorded: Sequence[tuple[int, float | None]]) -> Iterator[Figure]:
    """The chart of a value that not every run records."""
    samples = [(float(step), value) for step, value in recorded if value is not None]
    if samples:
        chart = charts.line_chart(samples)
        yield Figure(name, title, title.lower(), chart, _describe("values", "", samples, chart))


def _loss_figure(curve: Sequence[Point]) -> Figure:
    samples = [(float(point.step), point.loss) for point in curve]
    chart = charts.line_chart(samples)
    return Figure("loss", "Loss", "training loss", chart, _describe("losses", "", samples, chart))


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
    summary = _describe("step times", f" {unit}", samples, chart)
    return Figure("step-times", "Step times", f"time of a step, {unit}", chart, summary)


def _describe(what: str, unit: str, samples: Sequence[charts.Sample], chart: LineChart | None) -> str:
    """Describes a chart in a sentence, also if it cannot be drawn."""
    if not samples:
        return f"No {what} were recorded."
    if chart is None:
        return f"None of the {len(samples):,} recorded {what} is a finite number."
    finite = [sample for sample in samples if charts.is_drawable(sample[1])]
    (first_x, first_y), (last_x, last_y) = finite[0], finite[-1]
    text = f"{number_text(first_y)}{unit} at step {first_x:,.0f}"
    if len(finite) > 1:
        values = [y for _, y in finite]
        text = f"From {text} to {number_text(last_y)}{unit} at step {last_x:,.0f}"
        text += f"; lowest {number_text(min(values))}{unit}, highest {number_text(max(values))}{unit}"
    if chart.num_left_out:
        text += f"; {chart.num_left_out:,} of {len(samples):,} are not finite and are omitted"
    return text + "."
