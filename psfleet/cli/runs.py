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
from psfleet.launch.runs import RunEntry, runs_in

COLUMNS = ("run", "job", "platform", "status", "step", "of", "metric", "started", "seconds")
NUMBERS = {"step", "of", "seconds"}

app = typer.Typer()


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Has the run folders.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of runs.")] = False,
) -> None:
    """List the runs in a folder, the newest first: status, step, accuracy or the first metric, start, duration."""
    found = runs_in(folder)
    console = Console()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(run) for run in found]))
    elif not found:
        typer.echo(f"no runs in {folder}")
    else:
        rows = [_cells(run) for run in found]
        console.print(table(console, COLUMNS, rows, NUMBERS), soft_wrap=not console.is_terminal, highlight=False)


def _cells(run: RunEntry) -> tuple[str, ...]:
    step, target = (NOTHING if number is None else str(number) for number in (run.step, run.target_step))
    metric = NOTHING if run.value is None else f"{run.metric} {run.value:.4f}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else NOTHING
    status = f"{run.status} ({run.exit_code})" if run.exit_code else run.status
    return run.run, run.job, run.platform or NOTHING, status, step, target, metric, started, f"{run.seconds:.0f}"
