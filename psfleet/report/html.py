"""Renders a run's report as a self-contained HTML page."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from psfleet.files import replace_file
from psfleet.report import charts
from psfleet.report.attempts import earlier_report, merged, set_aside, standing
from psfleet.report.figures import figures
from psfleet.report.formats import count_text, duration_text, moment, number_text
from psfleet.report.history import History, Point
from psfleet.report.json_lines import DRAWN_RECORDS
from psfleet.report.pictures import Picture
from psfleet.report.pictures import pictures as found_pictures
from psfleet.report.schema import Evaluation, EvaluationLog, Report
from psfleet.report.shown_job import job_of_run, shown
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog

logger = logging.getLogger("psfleet.report")

PARTS = ("chart.html.j2", "style.css.j2")
"""Templates that the pages include."""
MAX_STALENESS_ROWS = 20


@dataclass(frozen=True)
class Bar:
    """A table row with a bar: `full` and `rest` are fractions of the longest bar, each 0 to 1."""

    label: str
    full: float
    rest: float
    cells: tuple[str, ...]


def render(
    report: Report,
    curve: Sequence[Point],
    evaluations: Sequence[Evaluation] = (),
    training: Sequence[TrainingMetrics] = (),
    job: Mapping[str, Any] | None = None,
    pictures: Mapping[str, Sequence[Picture]] | None = None,
) -> str:
    """Renders the page of a run.

    Args:
        report: The content of `report.json`.
        curve: The points by ascending step, from `History.curve`; may be empty.
        evaluations: By ascending step, from `EvaluationLog.curve`; may be empty.
        training: By ascending step, from `TrainingMetricsLog.curve`; may be empty.
        job: The resolved job, from `job_of_run`; None: not known.
        pictures: By tag, from `psfleet.report.pictures`; None: there are none.
    """
    return template("report.html.j2").render(
        report=report,
        headline=_headline(report),
        numbers=_key_numbers(report),
        figures=figures(report, curve, evaluations, training),
        pictures=pictures or {},
        job=None if job is None else shown(job),
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
    earlier = earlier_report(folder)
    if earlier is None:
        set_aside(folder)
    report = standing(merged(earlier, report), folder)
    report.write(folder)
    replace_file(folder / "report.html", page(report, folder))
    return report


def publish_or_warn(report: Report, folder: Path) -> Report:
    """As `publish`, for a command that returns the report even if the folder cannot be written, which is logged."""
    try:
        return publish(report, folder)
    except OSError as error:
        logger.error("the report cannot be written to %s: %s", folder, error.strerror or error)
        return merged(earlier_report(folder), report)


def page(report: Report, folder: Path) -> str:
    """Renders the page of a run with the curves in its folder."""
    return render(
        report,
        History(folder / History.FILE_NAME).curve(DRAWN_RECORDS),
        EvaluationLog(folder / EvaluationLog.FILE_NAME).curve(DRAWN_RECORDS),
        TrainingMetricsLog(folder / TrainingMetricsLog.FILE_NAME).curve(DRAWN_RECORDS),
        job_of_run(folder),
        found_pictures(folder),
    )


@cache
def template(name: str) -> Template:
    """The template of a page, in a file beside this module; compiled once in a process and its forks."""
    loader = FunctionLoader(lambda name: files("psfleet.report").joinpath(name).read_text(encoding="utf-8"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    environment.filters.update(duration=duration_text, moment=moment, number=number_text, whole=count_text)
    for part in PARTS:
        environment.get_template(part)
    return environment.get_template(name)


def _headline(report: Report) -> str:
    progress = f"step {report.final_step:,} of {report.target_step:,}"
    if report.status == "done":
        return f"Done: stopped early at {progress}" if report.stopped_early else f"Done: {progress}"
    if report.status == "stopped":
        return f"Stopped at {progress}; the same command resumes from the last checkpoint"
    return f"Failed at {progress} with exit code {report.exit_code}"


def _key_numbers(report: Report) -> list[tuple[str, str]]:
    """Name and value of the most important results."""
    gradients, best = report.gradients, report.best
    since = f" since step {gradients.since_step:,}" if gradients.since_step else ""
    return [
        *((f"evaluation: {name}", number_text(value)) for name, value in report.eval.items()),
        *((f"training: {name}", number_text(value)) for name, value in report.training_metrics.items()),
        *([] if best is None else [(f"best {best.metric}", f"{number_text(best.value)} at step {best.step:,}")]),
        *_last_losses(report),
        ("time", duration_text(report.seconds)),
        ("training time", duration_text(report.training_seconds)),
        ("examples per second", number_text(report.examples_per_sec)),
        ("median step time", duration_text(report.step_secs.p50)),
        ("95th percentile of step times", duration_text(report.step_secs.p95)),
        ("mode", report.mode),
        (f"gradients pushed{since}", count_text(gradients.pushed)),
        ("gradients used", f"{count_text(gradients.used)}{_share(gradients.used, gradients.pushed)}"),
        ("gradients dropped", f"{count_text(gradients.dropped)}{_share(gradients.dropped, gradients.pushed)}"),
        *_data(report),
        ("generation", count_text(report.generation)),
        ("restarts", count_text(report.restarts)),
    ]


def _data(report: Report) -> list[tuple[str, str]]:
    """What became of the examples with dynamic sharding."""
    data = report.data
    if data is None:
        return []
    epochs = count_text(data.ended_epochs)
    return [
        ("examples delivered", count_text(data.delivered)),
        (f"examples lost in {epochs} epochs", count_text(data.lost)),
    ]


def _last_losses(report: Report) -> list[tuple[str, str]]:
    if report.losses:
        return [(f"last training loss: {name}", number_text(value)) for name, value in report.losses.items()]
    return [("last training loss", number_text(report.loss))]


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
            (
                count_text(pushed),
                count_text(used),
                count_text(pushed - used),
                number_text(counts[key].examples_per_sec),
            ),
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
