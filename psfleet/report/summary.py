"""Summary of a report in the console: how a run ended, and where its results are."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import NoCheckpointError
from psfleet.plurals import counted
from psfleet.report.measurements import DataReading
from psfleet.report.schema import Report

FEW_WEIGHTS = 8
"""The summary lists all parameters of a model that has at most this many."""
SHOWN_ATTEMPTS = 5
"""The summary lists so many of the newest attempts."""
LABEL_CHARS = 16
"""Width of the summary's first column, unless a metric or weight has a longer name."""


def summary(console: Console, report: Report, out: Folder) -> None:
    """Prints how a run ended and where its results are: in a run folder, or in a store."""
    counts, best = report.gradients, report.best
    since = f" since step {counts.since_step}" if counts.since_step else ""
    rows = {
        "status": report.status + (f" (exit code {report.exit_code})" if report.exit_code else ""),
        "error": report.error,
        "attempts": _attempts(report),
        "steps": f"{report.final_step} of {report.target_step}",
        "stopped early": report.stopped_early,
        "time": f"{report.seconds:.1f} s ({report.training_seconds:.1f} s of training)",
        "rate": f"{report.examples_per_sec:,.0f} examples/s",
        **{f"test {name}": f"{value:.4g}" for name, value in report.eval.items()},
        **{name: f"{value:.4g}" for name, value in _few_weights(report).items()},
        "gradients": f"{counts.pushed} pushed, {counts.used} used, {counts.dropped} dropped{since}",
        "examples": _examples(report.data),
        "restarts": str(report.restarts) if report.restarts else None,
        "checkpoint": relative(report.checkpoint.path) if report.checkpoint else None,
        "best": f"{best.metric} {best.value:.4g}, {relative(best.path)}" if best else None,
        "report": str(out / ("report.html" if isinstance(out, Path) else Report.FILE_NAME)),
    }
    shown = {f"{name}:": value for name, value in rows.items() if value is not None}
    width = max(LABEL_CHARS, *map(len, shown))
    for name, value in shown.items():
        console.print(f"{name:<{width}} {value}", markup=False, highlight=False)


def _attempts(report: Report) -> str | None:
    """Number and outcomes of the newest attempts; None if there was only one."""
    if len(report.attempts) < 2:
        return None
    ends = (
        each.status
        + (f" at step {each.final_step}" if each.final_step is not None else "")
        + (f" (exit code {each.exit_code})" if each.exit_code else "")
        for each in report.attempts[-SHOWN_ATTEMPTS:]
    )
    skipped = "…, " if len(report.attempts) > SHOWN_ATTEMPTS else ""
    return f"{len(report.attempts)}: {skipped}{', '.join(ends)}"


def _examples(data: DataReading | None) -> str | None:
    """What became of the examples with dynamic sharding; None without."""
    if data is None:
        return None
    return f"{data.delivered} delivered, {data.lost} lost in {counted(data.ended_epochs, 'epoch')} (sharding: dynamic)"


def relative(path: str) -> str:
    """A path relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _few_weights(report: Report) -> dict[str, float]:
    """The parameters of a model that has at most FEW_WEIGHTS, by name.

    Empty for a larger model, and if the checkpoint cannot be read: the report has its own verdict on that.
    """
    if report.checkpoint is None:
        return {}
    try:
        checkpoint = read_manifest(Path(report.checkpoint.path))
        specs = checkpoint.layout.parameters.specs
        if sum(spec.size for spec in specs) > FEW_WEIGHTS:
            return {}
        tensors = read_tensors(checkpoint)
    except (NoCheckpointError, OSError):
        return {}
    return {
        spec.name + (f"[{at}]" if spec.shape else ""): float(value)
        for spec in specs
        for at, value in enumerate(tensors[spec.name].reshape(-1))
    }
