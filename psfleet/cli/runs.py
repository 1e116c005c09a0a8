"""The commands for runs in folders: `psfleet runs` and `compare`."""

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
from psfleet.launch.runs import RunEntry, runs_in
from psfleet.report.compare import ComparedRun, figures, render, settings

COLUMNS = ("run", "job", "platform", "status", "step", "of", "metric", "started", "seconds")
NUMBERS = {"step", "of", "seconds"}

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
    step, target = (NOTHING if number is None else str(number) for number in (run.step, run.target_step))
    metric = NOTHING if run.value is None else f"{run.metric} {run.value:.4g}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else NOTHING
    status = f"{run.status} ({run.exit_code})" if run.exit_code else run.status
    return run.run, run.job, run.platform or NOTHING, status, step, target, metric, started, f"{run.seconds:.0f}"
