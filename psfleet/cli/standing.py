"""The commands for fleets that stand: `psfleet fleet up` and `down`, and `run` for their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psfleet.cli.arguments import Context, LongNamespace, Namespace, OnMachine
from psfleet.cli.termination import ended_by_sigterm
from psfleet.errors import UsageError
from psfleet.job.fleet_file import load_fleet
from psfleet.platforms.standing.platform import standing_platform
from psfleet.plurals import counted

Name = Annotated[str, typer.Argument(metavar="NAME", help="The fleet's name.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="Start and end fleets that stand, on which runs and clients work.")


@app.command()
def up(
    file: Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file.", show_default=False)],
    on: OnMachine = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Start a fleet that stands until `psfleet fleet down`."""
    place = standing_platform(on, context, namespace)
    with ended_by_sigterm():
        access = place.up(load_fleet(file))
    typer.echo(f"{access.name}: up, {len(access.ps)} ps and {counted(len(access.workers), 'worker')}")


@app.command()
def down(name: Name, on: OnMachine = None, context: Context = None, namespace: Namespace = None) -> None:
    """End a fleet, with everything that runs and clients keep on it."""
    standing_platform(on, context, namespace).down(name)
    typer.echo(f"{name}: down")


def run(
    script: Annotated[Path, typer.Argument(metavar="CLIENT", help="The client, a Python script.", show_default=False)],
    fleet: Annotated[str, typer.Option(metavar="NAME", help="The standing fleet.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")] = None,
    on: OnMachine = None,
    context: Context = None,
    namespace: LongNamespace = None,
) -> None:
    """Run a script that `psfleet.connect()` connects to a standing fleet, and exit with its exit code.

    Options that this command does not know are the script's; `--` begins those that it would take for its own.
    """
    place = standing_platform(on, context, namespace)
    if not script.is_file():
        raise UsageError(f"client {script}: no such file, expected a Python script")
    raise typer.Exit(place.run(fleet, script, arguments or ()))
