"""The commands for a fleet in containers: `psfleet up`, `results`, `status`, `scale`, `down`, `render`."""

from __future__ import annotations

import json
import shlex
import signal
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
from rich.console import Console

from psfleet.cli.arguments import (
    Context,
    Fleet,
    Fresh,
    JobFile,
    Namespace,
    On,
    OnFleet,
    OnOrHere,
    Out,
    Overrides,
    option_words,
    override_words,
)
from psfleet.cli.output import progress_console
from psfleet.cli.status_table import table_of
from psfleet.errors import SIGNAL_BASE, BadJobError, UsageError
from psfleet.job.activity import kind_of
from psfleet.job.job import load_job, name_of
from psfleet.launch.followed import collect_followed
from psfleet.launch.followers import following
from psfleet.launch.platform import COMPOSE, Platform, Request, chief_of
from psfleet.launch.results import fetch
from psfleet.launch.results_folder import require_usable
from psfleet.launch.scale import scale as scale_fleet
from psfleet.launch.status import container_statuses, standing_statuses
from psfleet.launch.up import down as take_down
from psfleet.launch.up import remove as remove_fleet
from psfleet.launch.up import start
from psfleet.launch.watcher import FleetWatcher
from psfleet.platforms.choice import platform
from psfleet.platforms.local.status import local_statuses, not_running
from psfleet.platforms.standing.local import LocalFleets
from psfleet.platforms.standing.placing import on_fleet
from psfleet.platforms.standing.platform import standing_platform, with_standing
from psfleet.plurals import counted
from psfleet.report.progress import progress
from psfleet.report.summary import summary
from psfleet.run_folder import claimed, default_folder

INTERRUPTED = SIGNAL_BASE + signal.SIGINT
"""Exit code after Ctrl-C."""
WATCH_SECS = 2.0
"""Interval of the tables of `status --watch`."""

app = typer.Typer()


@app.command()
def up(
    job: JobFile,
    on: On = COMPOSE,
    overrides: Overrides = None,
    out: Out = None,
    fresh: Fresh = False,
    fleet: OnFleet = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Train a job in containers; attach to it if it runs, resume from its newest checkpoint if it does not."""
    loaded = load_job(job, overrides or ())
    folder = out if out is not None else default_folder(loaded.name, on)
    place = platform(on, context, namespace)
    if fleet is not None:
        loaded = on_fleet(loaded, fleet, standing_platform(on, context, namespace))
    console = progress_console()
    require_usable(place, loaded, folder, fresh, on)
    is_started = False
    try:
        with following(place, loaded.name) as follower:
            start(place, Request(loaded, job, fresh, fleet=fleet or ""))
            is_started = True
            if fresh:
                # Deletes the results of earlier runs here, which `collect` would otherwise mix with those of this run.
                with claimed(folder, loaded, fresh=True, platform=on):
                    pass
            members = place.members(loaded.name)
            for member in members:
                if member.url:
                    console.print(f"{member.role}: {member.url}", markup=False, highlight=False)
            with progress(console, loaded) as listener:
                FleetWatcher(place, loaded, listener).run()
            chief = chief_of(members)
            report = collect_followed(place, loaded, folder, on, 0.0 if chief is None else chief.created)
            summary(console, report, folder)
            if follower.is_last():
                remove_fleet(place, loaded.name)
            else:
                text = f"another command follows fleet {loaded.name}, and removes it at its own end"
                console.print(text, markup=False, highlight=False)
    except KeyboardInterrupt:
        where = ["--on", on, *option_words({"--context": context, "--namespace": namespace})]
        options = [*option_words({"--fleet": fleet}), *override_words(overrides, out)]
        again = shlex.join(["psfleet", "up", str(job), *where, *options])
        text = f"detached; the run continues. `{again}` reattaches to it"
        if not is_started:
            again += " --fresh" if fresh else ""
            text = f"interrupted before the whole fleet was started. `{again}` starts it"
        down_words = shlex.join(["psfleet", "down", loaded.name, *where])
        console.print(f"{text}, `{down_words}` saves and ends it.", markup=False, highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(report.exit_code)


@app.command()
def results(
    job: Fleet, on: On = COMPOSE, out: Out = None, context: Context = None, namespace: Namespace = None
) -> None:
    """Copy what a run has on its platform to the run folder, also after `psfleet down`."""
    name = name_of(job)
    loaded = load_job(Path(job)) if Path(job).is_file() else None
    folder = out if out is not None else default_folder(name, on)
    found = fetch(platform(on, context, namespace), name, loaded, folder, on)
    typer.echo(f"{name}: copied to {folder}" + ("; the fleet runs" if found.is_running else ""))
    if found.report is None:
        typer.echo("no report yet: no attempt of the run has ended")
    else:
        summary(Console(soft_wrap=True), found.report, folder)


@app.command()
def status(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="A job file or a job's name; all by default.")
    ] = None,
    on: OnOrHere = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of containers and processes.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the table again every 2 seconds.")] = False,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show every container, and every process of a local run: role, index, step, rate, restarts, last event."""
    name = None if job is None else name_of(job)
    place, console = with_standing(platform(on or COMPOSE, context, namespace), on, context, namespace), Console()
    has_local = False

    def show() -> None:
        nonlocal has_local
        rows = [*local_statuses(Path("runs"), name), *standing_statuses(LocalFleets(), name)] if on is None else []
        # A run that ends while it is watched needs no containers afterwards either.
        has_local = has_local or bool(rows)
        rows += container_statuses(place, name, has_local, not_running(Path("runs"), name) if on is None else "")
        if as_json:
            typer.echo(json.dumps([asdict(row) for row in rows]))
        else:
            console.print(table_of(console, rows), soft_wrap=not console.is_terminal, highlight=False)

    try:
        show()
        while watch:
            Event().wait(WATCH_SECS)
            if console.is_terminal and not as_json:
                console.clear()
            show()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def scale(
    job: Fleet,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers and spares together, with the chief.", show_default=False)
    ] = None,
    loaders: Annotated[int | None, typer.Option(min=1, help="Loaders that read data.", show_default=False)] = None,
    on: On = COMPOSE,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Change the number of workers, or of loaders, of a fleet that trains."""
    if workers is None and loaders is None:
        raise UsageError("psfleet scale without a number, expected --workers N or --loaders N")
    name = name_of(job)
    scale_fleet(platform(on, context, namespace), name, workers, loaders)
    numbers = [(workers, "worker"), (loaders, "loader")]
    typer.echo(f"{name}: {', '.join(counted(number, noun) for number, noun in numbers if number is not None)}")


@app.command()
def down(
    job: Fleet,
    results: Annotated[bool, typer.Option("--results", help="Remove checkpoints and reports there, too.")] = False,
    on: On = COMPOSE,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """End a fleet after it has saved what it trained, and remove its containers."""
    name = name_of(job)
    place = platform(on, context, namespace)
    chief = chief_of(place.members(name))
    kind = chief.activity if chief is not None else _kind_without_chief(place, name)
    take_down(place, name, results)
    then = "`psfleet up` resumes from its newest checkpoint"
    if kind:
        then = f"the command that started the {kind} continues it"
    typer.echo(f"{name}: down" + ("" if results else f"; {then}"))


def _kind_without_chief(place: Platform, name: str) -> str:
    """The kind of a fleet whose start was interrupted; empty: it would have trained, or that is not known."""
    try:
        return kind_of(place.activity(name))
    except BadJobError:
        # Of another version of psfleet; it must be removable, too.
        return ""


@app.command()
def render(
    on: Annotated[str, typer.Argument(metavar="PLATFORM", help="compose or kubernetes.")],
    job: JobFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write this file, with paths relative to it.")] = None,
) -> None:
    """Print a fleet for the platform's own tools: a compose file, or Kubernetes manifests."""
    place = platform(on)
    command = shlex.join(["psfleet", "render", on, str(job), *override_words(overrides, out)])
    text = place.render(Request(load_job(job, overrides or ()), job), out, command)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}, expected a file that can be written") from error
