"""The commands for runs that have left results: `psfleet runs`, `report` and `compare`."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from psfleet.cli.tables import NOTHING, table
from psfleet.errors import UsageError
from psfleet.launch import reported
from psfleet.launch.runs import RunEntry, is_running, runs_in
from psfleet.report.compare import ComparedRun, figures, render, settings
from psfleet.report.records import Attempt
from psfleet.report.summary import summary
from psfleet.run_folder import owner

COLUMNS = ("run", "job", "platform", "status", "step", "of", "metric", "started", "seconds")
NUMBERS = {"step", "of", "seconds"}
ATTEMPT_COLUMNS = ("attempt", "started", "status", "from", "to", "of", "seconds", "changes", "error")
ATTEMPT_NUMBERS = {"attempt", "from", "to", "of", "seconds"}

app = typer.Typer()


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Has the run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of runs.")] = False,
) -> None:
    """List the runs in a folder, the newest first: status, step, the main metric, start, duration."""
    found = runs_in(folder)
    console = Console()
    if as_json:
        rows = json.dumps([dataclasses.asdict(run) for run in found])
        # As in `report.json`, numbers that are not finite are texts: JSON has none.
        typer.echo(json.dumps(json.loads(rows, parse_constant=str)))
    elif not found:
        typer.echo(f"no runs in {folder}")
    else:
        cells = [_cells(run) for run in found]
        console.print(table(console, COLUMNS, cells, NUMBERS), soft_wrap=not console.is_terminal, highlight=False)


@app.command()
def report(
    run: Annotated[
        str,
        typer.Argument(
            help="A run folder, the URL of a store, or a job file or a job's name: its newest run in runs/.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, as in `report.json`.")] = False,
) -> None:
    """Show how a run ended: status, steps, metrics, gradients, the checkpoint, and each of its attempts."""
    place = reported.run_named(run, Path("runs"))
    found = reported.read(place)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    console = Console()
    typer.echo(f"{found.name} ({found.mode}) in {place}")
    summary(Console(soft_wrap=True), found, place)
    if found.attempts:
        typer.echo()
        cells = [_attempt(number, each) for number, each in enumerate(found.attempts, 1)]
        console.print(
            table(console, ATTEMPT_COLUMNS, cells, ATTEMPT_NUMBERS), soft_wrap=not console.is_terminal, highlight=False
        )
    if isinstance(place, Path) and (belongs_to := owner(place)) is not None and is_running(place, belongs_to):
        typer.echo(f"\n{place}: a run trains there now; this is the report of the attempts before")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders, or their names in runs/.")],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with the curves of all runs, too.")
    ] = None,
) -> None:
    """Show side by side the settings in which runs differ, and their final figures."""
    if len(folders) < 2:
        raise UsageError(f"{folders[0]}: expected two runs or more")
    compared = [ComparedRun.read(_folder(each)) for each in folders]
    labels, console = [run.label for run in compared], Console()
    different = settings(compared)
    for name, rows in (("setting", different), ("figure", figures(compared))):
        if rows:
            cells = [(each, *values) for each, values in rows]
            console.print(table(console, (name, *labels), cells), soft_wrap=not console.is_terminal, highlight=False)
        else:
            typer.echo("the jobs do not differ")
        if rows is different:
            typer.echo()
    if html is not None:
        _write(html, render(compared))


def _folder(path: Path) -> Path:
    """A run folder, given by its path or by its name in `runs/`."""
    named = Path("runs") / path
    return named if not path.exists() and named.is_dir() else path


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: {error.strerror or error}, expected a file that can be written") from error
    typer.echo(f"\n{path}: curves of all runs")


def _cells(run: RunEntry) -> tuple[str, ...]:
    metric = NOTHING if run.value is None else f"{run.metric} {run.value:.4g}"
    steps = _number(run.step), _number(run.target_step)
    status = _status(run.status, run.exit_code)
    return (
        run.run,
        run.job,
        run.platform or NOTHING,
        status,
        *steps,
        metric,
        _started(run.started),
        f"{run.seconds:.0f}",
    )


def _attempt(number: int, attempt: Attempt) -> tuple[str, ...]:
    status = _status(attempt.status, attempt.exit_code)
    steps = _number(attempt.first_step), _number(attempt.final_step), _number(attempt.target_step)
    changes, error = ", ".join(attempt.changes) or NOTHING, attempt.error or NOTHING
    return str(number), _started(attempt.started), status, *steps, f"{attempt.seconds:.0f}", changes, error


def _status(status: str, exit_code: int | None) -> str:
    return f"{status} ({exit_code})" if exit_code else status


def _number(number: int | None) -> str:
    return NOTHING if number is None else str(number)


def _started(time_: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_)) if time_ else NOTHING
