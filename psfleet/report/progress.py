"""Shows a run's progress in the console: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from psfleet.job.job import Job
from psfleet.plurals import counted
from psfleet.report.schema import Report
from psfleet.report.summary import relative
from psfleet.service.logs import is_event

LINE_SECS = 5.0
"""Minimum time between two progress lines where the console is no terminal."""
QUIET_EVENTS = frozenset({"progress", "fleet", "checkpoint", "failed", "verified"})
"""Events of the chief's log that are not printed as lines."""

Listener = Callable[[Mapping[str, Any]], None]


def starting_entry(job: Job) -> dict[str, str]:
    """The log entry that the launcher of local processes passes to its listener before it starts them."""
    fleet = job.fleet
    workers = counted(fleet.workers, "worker") + (f" and {counted(fleet.spares, 'spare')}" if fleet.spares else "")
    if fleet.ps_addresses is not None:
        text = f"{workers} on the running ps {', '.join(fleet.ps_addresses)}"
    elif fleet.colocate:
        text = f"{workers}, each of which is a ps, too"
    else:
        text = f"{fleet.ps} ps" + (", " if fleet.spares else " and ") + workers
    return {"event": "starting", "message": f"{job.name}: starting {text} (importing TensorFlow takes some seconds)"}


def finished_entry(report: Report) -> dict[str, str]:
    """The log entry that the launcher passes to its listener instead, for a run that has nothing left to do."""
    saved = report.checkpoint.path if report.checkpoint is not None else "nothing"
    text = f"step {report.final_step} is saved in {relative(saved)}, which was verified again"
    return {
        "event": "finished",
        "message": f"{report.name}: done already, {text}; nothing was started (--fresh starts the run anew)",
    }


class _Unfailing:
    """A stream that ignores what it cannot write, because it was closed or its reader has ended."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As `IO.write`."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As `IO.flush`."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def callers_console() -> Console:
    """The console of a program that calls `psfleet.train`: its notebook, or stderr, which need not be open."""
    is_jupyter = Console().is_jupyter
    if is_jupyter or sys.stderr is None:
        return Console(soft_wrap=True, stderr=not is_jupyter)
    return Console(soft_wrap=True, file=cast("IO[str]", _Unfailing(sys.stderr)))


@contextmanager
def progress(console: Console, job: Job) -> Iterator[Listener]:
    """A listener that displays the chief's log entries as they arrive; the bar says "starting" until the first step."""
    if not console.is_terminal:
        yield _lines(console, job)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[rate]} examples/s"),
        TimeRemainingColumn(),
    )
    # What else is printed appears above the bar; stdout of a script may be a file although the bar is on a terminal.
    with Progress(*columns, console=console, redirect_stdout=_is_terminal(sys.stdout)) as bar:
        task = bar.add_task(f"{job.name}: starting", total=None, loss="-", rate="-")

        def show(entry: Mapping[str, Any]) -> None:
            if _is_progress(entry):
                rate = f"{entry['examples_per_sec']:,.0f}"
                loss = _losses(entry)
                total, step = job.train.steps, entry["step"]
                bar.update(task, description=job.name, total=total, completed=step, loss=loss, rate=rate)
            elif _is_printed(entry):
                bar.console.print(entry["message"], markup=False, highlight=False)

        yield show


def _is_terminal(stream: IO[str] | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _lines(console: Console, job: Job) -> Listener:
    """A listener that prints lines, of progress one in LINE_SECS."""
    last = float("-inf")
    is_first = True

    def show(entry: Mapping[str, Any]) -> None:
        nonlocal last, is_first
        now = time.monotonic()
        if _is_progress(entry):
            if now - last < LINE_SECS and entry["step"] < job.train.steps:
                return
            last = now
            text = (
                f"step {entry['step']} of {job.train.steps}  loss {_losses(entry)}  "
                f"{entry['examples_per_sec']:,.0f} examples/s"
            )
            # The first step takes much longer than all others.
            if not is_first or entry["step"] == job.train.steps:
                text += f"  {(job.train.steps - entry['step']) * entry['step_secs']:.0f} s left"
            is_first = False
            console.print(text, markup=False, highlight=False)
        elif _is_printed(entry):
            console.print(entry["message"], markup=False, highlight=False)

    return show


def _is_progress(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is of the chief's training; a program's own `event: progress` has other fields."""
    return is_event(entry, "progress", "step", "loss", "step_secs", "examples_per_sec")


def _losses(entry: Mapping[str, Any]) -> str:
    """The loss of a progress entry; of several losses the newest of each, by name."""
    named = entry.get("losses")
    if isinstance(named, Mapping) and named:
        return ", ".join(f"{name} {float(value):.4g}" for name, value in named.items())
    return f"{float(entry['loss']):.4g}"


def _is_printed(entry: Mapping[str, Any]) -> bool:
    return {"event", "message"} <= entry.keys() and entry["event"] not in QUIET_EVENTS
