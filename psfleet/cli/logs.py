"""`psfleet logs`: the log of a fleet or of a run on this machine, and what it says of the placement of operations."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from psfleet.cli import log_lines
from psfleet.cli.arguments import Context, Namespace, OnOrHere
from psfleet.cli.fleets import INTERRUPTED
from psfleet.cli.tables import table
from psfleet.errors import UsageError
from psfleet.launch.logs import fleet_logs
from psfleet.launch.placement import Placement, placements
from psfleet.launch.platform import COMPOSE
from psfleet.launch.shown import ShownPlatform
from psfleet.platforms.choice import platform
from psfleet.platforms.local.logs import local_logs
from psfleet.platforms.standing.local import LocalFleets
from psfleet.platforms.standing.platform import with_standing

KINDS = 5
"""Most frequent kinds of operations that the table names."""


def logs(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="The job file, the job's name, or a run folder.", show_default=False)
    ],
    task: Annotated[str | None, typer.Argument(help="ps-0, worker-1, chief, …; all by default.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until the fleet ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines of each log.", metavar="N")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only entries of the last TIME: 30s, 5m, 2h, or seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as they were logged.")] = False,
    placement: Annotated[
        bool,
        typer.Option("--placement", help="Print a table of operations by device; the job needs device.log_placement."),
    ] = False,
    on: OnOrHere = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Print log lines of a fleet, or of a run on this machine: time, level, task, message."""
    if placement and follow:
        raise UsageError("--placement with --follow: expected one of them")
    start_time = time.time() - log_lines.seconds(since) if since is not None else None
    try:
        run = log_lines.named_run(job, on)
        lines = log_lines.lines_of(
            run,
            lambda: fleet_logs(_with_logs(run, context, namespace), run.job, task, follow, tail),
            lambda folder: local_logs(folder, task, follow, tail),
        )
        if start_time is not None:
            lines = log_lines.since(lines, start_time)
        if placement:
            _print_placement(run.job, placements(lines), as_json)
            return
        for each, line in lines:
            raw = line if task is not None else f"{each} | {line}"
            typer.echo(raw if as_json else log_lines.readable(each, line))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _with_logs(run: log_lines.NamedRun, context: str | None, namespace: str | None) -> ShownPlatform:
    """The platform with the logs of a fleet: this machine if one of the name stands there, unless it is given."""
    if run.on is None and (local := LocalFleets()).members(run.job):
        return local
    return with_standing(platform(run.on or COMPOSE, context, namespace), run.on, context, namespace)


def _print_placement(name: str, rows: Sequence[Placement], as_json: bool) -> None:
    if not rows:
        raise UsageError(
            f"the logs of {name} have no placement, expected those of a run with device.log_placement: true"
        )
    if as_json:
        typer.echo(json.dumps([vars(row) for row in rows]))
        return
    console = Console()
    cells = [(row.process, row.device, str(row.operations.total()), _kinds(row)) for row in rows]
    columns = ("process", "device", "operations", "kinds")
    console.print(table(console, columns, cells, {"operations"}), soft_wrap=not console.is_terminal, highlight=False)


def _kinds(row: Placement) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in row.operations.most_common(KINDS))
