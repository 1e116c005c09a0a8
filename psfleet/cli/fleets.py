"""The commands for a fleet in containers: `psfleet up`, `status`, `logs`, `scale`, `down`, `render`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from psfleet import errors
from psfleet.cli.arguments import Fresh, JobFile, Out, Overrides
from psfleet.errors import UsageError
from psfleet.job.job import load_job
from psfleet.launch.platform import Platform, Request
from psfleet.launch.platforms import COMPOSE, platform
from psfleet.launch.status_table import show
from psfleet.report.progress import progress, summary
from psfleet.run_folder import claimed

app = typer.Typer()

On = Annotated[str, typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes.")]
Fleet = Annotated[str, typer.Argument(metavar="JOB", help="The job file, or the job's name.", show_default=False)]


@app.command()
def up(job: JobFile, on: On = COMPOSE, overrides: Overrides = None, out: Out = None, fresh: Fresh = False) -> None:
    """Train a job in containers; come back to it if it runs, go on from its newest checkpoint if it does not."""
    loaded = load_job(job, overrides or ())
    folder = out if out is not None else Path("runs") / loaded.name
    place = platform(on)
    console = Console(soft_wrap=True)
    try:
        place.up(Request(loaded, job, fresh))
        if fresh:
            with claimed(folder, loaded, fresh=True):
                pass
        with progress(console, loaded) as listener:
            place.follow(loaded.name, listener)
        report = place.collect(loaded.name, folder)
        summary(console, report, folder)
        place.down(loaded.name, results=False)
    except KeyboardInterrupt:
        _say_how_to_return(console, job, on)
        raise typer.Exit(errors.SIGNAL_BASE + 2) from None
    raise typer.Exit(report.exit_code)


@app.command()
def status(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="A job file or a job's name; all by default.")
    ] = None,
    on: On = COMPOSE,
) -> None:
    """Show every container: role, index, step, rate, health, restarts, last event."""
    show(Console(), platform(on).status(None if job is None else _name(job)))


@app.command()
def logs(
    job: Fleet,
    task: Annotated[str | None, typer.Argument(help="ps-0, worker-1, chief, …; all by default.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the fleet ends.")] = False,
    on: On = COMPOSE,
) -> None:
    """Print log lines of a fleet."""
    try:
        for line in platform(on).logs(_name(job), task, follow):
            typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(errors.SIGNAL_BASE + 2) from None


@app.command()
def scale(
    job: Fleet,
    workers: Annotated[int, typer.Option(min=1, help="Workers and spares together, the chief among them.")],
    on: On = COMPOSE,
) -> None:
    """Change the number of workers of a fleet that trains."""
    name = _name(job)
    platform(on).scale(name, workers)
    typer.echo(f"{name}: {workers} workers")


@app.command()
def down(
    job: Fleet,
    results: Annotated[bool, typer.Option("--results", help="Remove checkpoints and reports there, too.")] = False,
    on: On = COMPOSE,
) -> None:
    """End a fleet, saving what it has made, and remove its containers."""
    name = _name(job)
    platform(on).down(name, results)
    typer.echo(f"{name}: down" + ("" if results else "; `psfleet up` goes on from its newest checkpoint"))


@app.command()
def render(
    on: Annotated[str, typer.Argument(metavar="PLATFORM", help="compose or kubernetes.")],
    job: JobFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write this file, with paths relative to it.")] = None,
) -> None:
    """Print what the platform's own tools take: a compose file, or Kubernetes manifests."""
    place: Platform = platform(on)
    words = ["psfleet", "render", on, str(job), *[f"--set {text}" for text in overrides or ()]]
    command = " ".join(words + ([f"--out {out}"] if out is not None else []))
    text = place.render(Request(load_job(job, overrides or ()), job), out, command)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}, expected a file that can be written") from error


def _name(text: str) -> str:
    """The name of a fleet, from itself or from its job file."""
    path = Path(text)
    if path.is_file():
        return load_job(path).name
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text):
        return text
    raise UsageError(f"{text!r}: expected a job file that exists, or the name of a job")


def _say_how_to_return(console: Console, job: Path, on: str) -> None:
    text = (
        f"left; the run goes on. `psfleet up {job} --on {on}` comes back to it, "
        f"`psfleet down {job} --on {on}` saves and ends it."
    )
    console.print(text, markup=False, highlight=False)
