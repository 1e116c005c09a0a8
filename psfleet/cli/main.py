"""The command line: `psfleet train`, `validate`, `clusterspec`, `weights`, `reset`; others are in `cli_*.py`."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from psfleet import errors, launch
from psfleet.addresses import Address, tf_config
from psfleet.checkpoint import export
from psfleet.cli import certificates, fleets
from psfleet.cli.arguments import Fresh, JobFile, Out, Overrides
from psfleet.control.client import PsClient
from psfleet.control.credentials import read_identity
from psfleet.errors import BadJobError, ProgramError, PsfleetError, UsageError
from psfleet.job.job import load_job
from psfleet.job.program import load_program
from psfleet.report.progress import progress, summary
from psfleet.service.logs import log_plain
from psfleet.service.settings import prepare_tensorflow

TYPERS_USAGE = 2
"""What Typer exits with when it does not understand a command line; no run ends with it."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(fleets.app)
app.command()(certificates.certs)


@app.command()
def train(job: JobFile, overrides: Overrides = None, out: Out = None, fresh: Fresh = False) -> None:
    """Train a job on processes of this machine; go on from the newest checkpoint if there is one."""
    loaded = load_job(job, overrides or ())
    folder = out if out is not None else Path("runs") / loaded.name
    console = Console(soft_wrap=True)
    with progress(console, loaded) as listener:
        report = launch.train(loaded, out=folder, fresh=fresh, program_folder=job.parent, listener=listener)
    summary(console, report, folder)
    raise typer.Exit(report.exit_code)


@app.command()
def validate(job: JobFile, overrides: Overrides = None) -> None:
    """Check a job file and import its program, without training."""
    loaded = load_job(job, overrides or ())
    prepare_tensorflow()
    program = load_program(loaded, job.parent.resolve())
    typer.echo(f"{job}: valid, {type(program).__name__} {loaded.name}")


@app.command()
def clusterspec(
    job: JobFile,
    overrides: Overrides = None,
    task: Annotated[str | None, typer.Option(metavar="ROLE:INDEX", help="The task that TF_CONFIG is for.")] = None,
) -> None:
    """Print the TF_CONFIG of a job on a container network, as JSON."""
    typer.echo(json.dumps(tf_config(load_job(job, overrides or ()), task)))


@app.command(name="weights")
def export_weights(
    checkpoint_dir: Annotated[Path, typer.Argument(help="A run's checkpoints/ folder, or one checkpoint in it.")],
    out: Annotated[Path, typer.Option(help="FILE.safetensors, FILE.weights.h5 or FILE.keras.")],
) -> None:
    """Write the named tensors of a checkpoint into one file."""
    prepare_tensorflow()
    typer.echo(f"{out}: {export.export(checkpoint_dir, out)} tensors")


@app.command()
def reset(
    run: Annotated[str, typer.Argument(help="The run whose container is dropped.")],
    ps: Annotated[list[str], typer.Option(metavar="HOST:PORT", help="A running ps; its control port is the next.")],
    tls: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Certificate for ps with TLS: client/ of `psfleet certs`.")
    ] = None,
) -> None:
    """Drop what running parameter servers hold for a run; other runs on them are left alone."""
    try:
        addresses = [Address.parse(text) for text in ps]
    except BadJobError as error:
        raise UsageError(f"--ps: {error}") from error
    identity = read_identity(tls, "client")
    for address in addresses:
        client = PsClient(address, run, identity)
        try:
            found = client.reset()
        finally:
            client.close()
        typer.echo(f"{address.data}: {'dropped' if found else 'had nothing of'} run {run}")


def main() -> None:
    """Runs the command line; errors that psfleet raises on purpose are one line and their exit code."""
    log_plain()
    try:
        app()
        code: str | int | None = errors.DONE
    except SystemExit as exit_:
        code = errors.USAGE if exit_.code == TYPERS_USAGE else exit_.code
    except PsfleetError as error:
        code = _say(error)
    except Exception:
        traceback.print_exc()
        code = errors.BUG
    sys.exit(code)


def _say(error: PsfleetError) -> int:
    if isinstance(error, ProgramError) and error.details:
        typer.echo(error.details.rstrip(), err=True)
    typer.echo(f"psfleet: {error}", err=True)
    return error.exit_code
