"""Renders a run's report as a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from psfleet.report import charts
from psfleet.report.attempts import earlier_report, merged, standing
from psfleet.report.figures import figures, number
from psfleet.report.schema import Evaluation, EvaluationLog, History, Point, Report

MAX_STALENESS_ROWS = 20


@dataclass(frozen=True)
class Bar:
    """A table row with a bar: `full` and `rest` are fractions of the longest bar, each 0 to 1."""

    label: str
    full: float
    rest: float
    cells: tuple[str, ...]


def render(report: Report, curve: Sequence[Point], evaluations: Sequence[Evaluation] = ()) -> str:
    """Renders the page of a run.

    Args:
        report: The content of `report.json`.
        curve: The points by ascending step, from `History.curve`; may be empty.
        evaluations: By ascending step, from `EvaluationLog.curve`; may be empty.
    """
    return template().render(
        report=report,
        headline=_headline(report),
        numbers=_key_numbers(report),
        figures=figures(report, curve, evaluations),
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
    evaluations = EvaluationLog(folder / EvaluationLog.FILE_NAME).curve()
    text = render(report, History(folder / History.FILE_NAME).curve(), evaluations)
    temporary = folder / "report.html.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / "report.html")
    return report


@cache
def template() -> Template:
    """The page's template, compiled once in a process and its forks: 0.06 CPU seconds."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(duration=_duration, moment=_moment, number=number, whole=_whole)
    return environment.from_string(files("psfleet.report").joinpath("report.html.j2").read_text(encoding="utf-8"))


def _headline(report: Report) -> str:
    progress = f"step {report.final_step:,} of {report.target_step:,}"
    if report.status == "done":
        return f"Done: stopped early at {progress}" if report.stopped_early else f"Done: {progress}"
    if report.status == "stopped":
        return f"Stopped at {progress}; the same command resumes from the last checkpoint"
    return f"Failed at {progress} with exit code {report.exit_code}"


def _key_numbers(report: Report) -> list[tuple[str, str]]:
    """Name and value of the most important results."""
    gradients = report.gradients
    since = f" since step {gradients.since_step:,}" if gradients.since_step else ""
    return [
        *((f"evaluation: {name}", number(value)) for name, value in report.eval.items()),
        *((f"best {best.metric}", f"{number(best.value)} at step {best.step:,}") for best in [report.best] if best),
        ("last training loss", number(report.loss)),
        ("time", _duration(report.seconds)),
        ("examples per second", number(report.examples_per_sec)),
        ("median step time", _duration(report.step_secs.p50)),
        ("95th percentile of step times", _duration(report.step_secs.p95)),
        ("mode", report.mode),
        (f"gradients pushed{since}", _whole(gradients.pushed)),
        ("gradients used", f"{_whole(gradients.used)}{_share(gradients.used, gradients.pushed)}"),
        ("gradients dropped", f"{_whole(gradients.dropped)}{_share(gradients.dropped, gradients.pushed)}"),
        ("generation", _whole(report.generation)),
        ("restarts", _whole(report.restarts)),
    ]


def _worker_bars(report: Report) -> list[Bar]:
    """One row per worker: bars of used and dropped gradients; numbers of pushed, used and dropped; examples/s."""
    counts = report.gradients.per_worker
    rows = [(key, each.pushed, each.used) for key, each in counts.items()]
    rows.sort(key=lambda row: (not row[0].isdecimal(), len(row[0]) if row[0].isdecimal() else 0, row[0]))
    most = max((pushed for _, pushed, _ in rows), default=0) or 1
    return [
        Bar(
            key,
            used / most,
            max(0, pushed - used) / most,
            (_whole(pushed), _whole(used), _whole(pushed - used), number(counts[key].examples_per_sec)),
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
        bars.append(Bar(str(index), (size or 0) / most, 0.0, tuple(map(_whole, (size, *numbers)))))
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
    return Bar(label, total / max(totals), 0.0, (_whole(total), _share(total, sum(totals), parentheses=False)))


def _share(part: int, whole: int, *, parentheses: bool = True) -> str:
    """A part in percent; empty if the whole is 0."""
    if not whole:
        return ""
    text = f"{100 * part / whole:.1f} %"
    return f" ({text})" if parentheses else text


def _whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _duration(secs: float | None) -> str:
    """A duration in ms, s, min or h, depending on its length."""
    if secs is None or not math.isfinite(secs):
        return number(secs)
    if 0 < secs < 1:
        return f"{secs * 1000:.3g} ms"
    if secs < 120:
        return f"{secs:.3g} s"
    minutes, rest = divmod(round(secs), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _moment(time: float) -> dict[str, Any]:
    """Unix time in seconds as an ISO 8601 text for machines and a text for readers, in UTC."""
    at = datetime.fromtimestamp(time, UTC)
    return {"machine": at.isoformat(timespec="seconds"), "reader": f"{at:%Y-%m-%d %H:%M:%S}"}
