"""Renders a run's report as a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from psfleet.report import charts
from psfleet.report.attempts import earlier_report, merged, standing
from psfleet.report.charts import Level, LineChart
from psfleet.report.formats import count_text, duration_text, moment, number_text
from psfleet.report.schema import History, Point, Report

MAX_STALENESS_ROWS = 20


@dataclass(frozen=True)
class Figure:
    """A line chart with its labels; `summary` describes it in a sentence."""

    name: str
    title: str
    y_label: str
    chart: LineChart | None
    summary: str


@dataclass(frozen=True)
class Bar:
    """A table row with a bar: `full` and `rest` are fractions of the longest bar, each 0 to 1."""

    label: str
    full: float
    rest: float
    cells: tuple[str, ...]


def render(report: Report, curve: Sequence[Point]) -> str:
    """Renders the page of a run.

    Args:
        report: The content of `report.json`.
        curve: The points by ascending step, from `History.curve`; may be empty.
    """
    return template("report.html.j2").render(
        report=report,
        headline=_headline(report),
        numbers=_key_numbers(report),
        figures=[_loss_figure(curve), _step_figure(report, curve)],
        workers=_worker_bars(report),
        ps=_ps_bars(report),
        staleness=_staleness_bars(report.staleness),
        steps_lost=sum(event.steps_lost for event in report.events),
        box=charts,
    )


def publish(report: Report, folder: Path) -> Report:
    """Writes `report.json` and `report.html` to a run folder, each by a rename; the page includes the run's history.

    Args:
        report: What is known of the newest attempt; it is merged with the report that the folder has.

    Returns:
        The report of all attempts, as it was written.

    Raises:
        OSError: The folder cannot be written; calling it again is safe.
    """
    report = standing(merged(earlier_report(folder), report), folder)
    report.write(folder)
    text = render(report, History(folder / History.FILE_NAME).curve())
    temporary = folder / "report.html.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / "report.html")
    return report


@cache
def template(name: str) -> Template:
    """The template of a page, in a file beside this module."""
    loader = FunctionLoader(lambda name: files("psfleet.report").joinpath(name).read_text(encoding="utf-8"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters.update(duration=duration_text, moment=moment, number=number_text, whole=count_text)
    return environment.get_template(name)


def _headline(report: Report) -> str:
    progress = f"step {report.final_step:,} of {report.target_step:,}"
    if report.status == "done":
        return f"Done: {progress}"
    if report.status == "stopped":
        return f"Stopped at {progress}; the same command resumes from the last checkpoint"
    return f"Failed at {progress} with exit code {report.exit_code}"


def _key_numbers(report: Report) -> list[tuple[str, str]]:
    """Name and value of the most important results."""
    gradients = report.gradients
    since = f" since step {gradients.since_step:,}" if gradients.since_step else ""
    return [
        *((f"evaluation: {name}", number_text(value)) for name, value in report.eval.items()),
        ("last training loss", number_text(report.loss)),
        ("time", duration_text(report.seconds)),
        ("examples per second", number_text(report.examples_per_sec)),
        ("median step time", duration_text(report.step_secs.p50)),
        ("95th percentile of step times", duration_text(report.step_secs.p95)),
        ("mode", report.mode),
        (f"gradients pushed{since}", count_text(gradients.pushed)),
        ("gradients used", f"{count_text(gradients.used)}{_share(gradients.used, gradients.pushed)}"),
        ("gradients dropped", f"{count_text(gradients.dropped)}{_share(gradients.dropped, gradients.pushed)}"),
        ("generation", count_text(report.generation)),
        ("restarts", count_text(report.restarts)),
    ]


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


def _worker_bars(report: Report) -> list[Bar]:
    """One row per worker: bars of used and dropped gradients; numbers of pushed, used and dropped."""
    rows = [(key, counts.pushed, counts.used) for key, counts in report.gradients.per_worker.items()]
    rows.sort(key=lambda row: (not row[0].isdecimal(), len(row[0]) if row[0].isdecimal() else 0, row[0]))
    most = max((pushed for _, pushed, _ in rows), default=0) or 1
    return [
        Bar(
            key,
            used / most,
            max(0, pushed - used) / most,
            (count_text(pushed), count_text(used), count_text(pushed - used)),
        )
        for key, pushed, used in rows
    ]


def _ps_bars(report: Report) -> list[Bar]:
    """One row per ps: bar of bytes; bytes, and numbers of pushed, used and dropped gradients."""
    sizes: Sequence[int | None] = report.placement.ps
    counts = report.gradients.per_ps
    most = max(report.placement.ps, default=0) or 1
    bars = []
    for index in range(max(len(sizes), len(counts))):
        size = sizes[index] if index < len(sizes) else None
        gradients = counts[index] if index < len(counts) else None
        numbers = (gradients.pushed, gradients.used, gradients.dropped) if gradients else (None, None, None)
        bars.append(Bar(str(index), (size or 0) / most, 0.0, tuple(count_text(number) for number in (size, *numbers))))
    return bars


def _staleness_bars(counts: Mapping[str, int]) -> list[Bar]:
    """Rows of the staleness histogram, with wider bins if there are many values; empty if nothing was stale."""
    by_value = {int(value): count for value, count in counts.items() if count}
    if not any(by_value):
        return []
    width = math.ceil((max(by_value) + 1) / MAX_STALENESS_ROWS)
    totals = [0] * (max(by_value) // width + 1)
    for value, count in by_value.items():
        totals[value // width] += count
    labels = (str(low) if width == 1 else f"{low} to {low + width - 1}" for low in range(0, len(totals) * width, width))
    return [_histogram_bar(label, total, totals) for label, total in zip(labels, totals, strict=True)]


def _histogram_bar(label: str, total: int, totals: Iterable[int]) -> Bar:
    return Bar(label, total / max(totals), 0.0, (count_text(total), _share(total, sum(totals), parentheses=False)))


def _share(part: int, whole: int, *, parentheses: bool = True) -> str:
    """A part in percent; empty if the whole is 0."""
    if not whole:
        return ""
    text = f"{100 * part / whole:.1f} %"
    return f" ({text})" if parentheses else text
