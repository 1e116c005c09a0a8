"""Entry point of the `psfleet` command, with `train`, `validate`, `clusterspec`, `weights` and `reset`."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from psfleet import __version__, errors, platforms
from psfleet.addresses import Address, tf_config
from psfleet.checkpoint import export
from psfleet.checkpoint.location import parse
from psfleet.cli import certificates, exports, fleets, live, logs, predict, runs, serve, standing, sweep, tasks
from psfleet.cli.arguments import Context, Fresh, JobFile, LiveOn, Namespace, OnFleet, Out, Overrides
from psfleet.cli.output import guarded, progress_console
from psfleet.cli.termination import ended_by_sigterm
from psfleet.control.client import PsClient
from psfleet.control.credentials import read_identity
from psfleet.errors import BadJobError, PsfleetError, UsageError
from psfleet.job.job import load_job
from psfleet.job.store_url import require_package
from psfleet.launch.runs import has_live_run
from psfleet.plurals import counted
from psfleet.processes.validation import check_program
from psfleet.report.progress import progress
from psfleet.report.summary import summary
from psfleet.run_folder import default_folder
from psfleet.service.logs import log_plain
from psfleet.service.process_environment import prepare_tensorflow
from psfleet.service.stderr_filter import without_tensorflows_own

TYPER_USAGE = 2
"""Exit code of Typer for a malformed command line; mapped to `errors.USAGE`."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(fleets.app)
app.command()(logs.logs)
app.add_typer(runs.app)
app.add_typer(standing.app, name="fleet")
app.command(context_settings={"ignore_unknown_options": True})(standing.run)
app.command()(sweep.sweep)
app.command()(serve.serve)
app.add_typer(live.app)
app.command()(certificates.certs)
app.command()(tasks.task)
app.command()(exports.export)
app.command()(predict.predict)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"psfleet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train Keras and TensorFlow models data-parallel on parameter servers, workers and spares."""


@app.command()
def train(
    job: JobFile,
    overrides: Overrides = None,
    out: Out = None,
    fresh: Fresh = False,
    fleet: OnFleet = None,
) -> None:
    """Train a job in local processes; resume from its newest checkpoint if there is one."""
    loaded = load_job(job, overrides or ())
    folder = out if out is not None else default_folder(loaded.name)
    console = progress_console()
    with progress(console, loaded) as listener:
        report = platforms.train(
            loaded, out=folder, fresh=fresh, program_folder=job.parent, listener=listener, fleet=fleet
        )
    summary(console, report, folder)
    raise typer.Exit(report.exit_code)


@app.command()
def validate(job: JobFile, overrides: Overrides = None) -> None:
    """Check a job file, and its program with one batch of its data, without starting a fleet."""
    loaded = load_job(job, overrides or ())
    require_package(loaded.checkpoint.store)
    with ended_by_sigterm():
        found = check_program(loaded, job.parent.resolve())
    typer.echo(f"{job}: valid, {found}")


@app.command()
def clusterspec(
    job: JobFile,
    overrides: Overrides = None,
    task: Annotated[str | None, typer.Option(metavar="ROLE:INDEX", help="Add this task to TF_CONFIG.")] = None,
) -> None:
    """Print the job's TF_CONFIG on a container network, as JSON."""
    typer.echo(json.dumps(tf_config(load_job(job, overrides or ()), task)))


@app.command(name="weights")
def export_weights(
    checkpoint_dir: Annotated[
        str,
        typer.Argument(
            help="A run folder, its checkpoints/ folder, or one checkpoint; or the URL of a store; with --set a job or "
            "run."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="FILE.safetensors, FILE.weights.h5 or FILE.keras.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
    new: Annotated[
        Path | None, typer.Option("--set", metavar="FILE", help="Replace weights of a live run by a .safetensors.")
    ] = None,
    on: LiveOn = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Export the named tensors of a checkpoint to one file, or replace those of a run that trains."""
    if (out is None) == (new is None) or (best and new is not None):
        raise UsageError("psfleet weights: expected either --out FILE, with or without --best, or --set FILE")
    if out is None:
        assert new is not None, "one of both is given"
        live.set_weights(str(checkpoint_dir), new, live.Place(on, context, namespace))
        return
    if on is not None or context is not None or namespace is not None:
        raise UsageError(
            "psfleet weights: --on, --context and --namespace are for --set FILE; `psfleet results` copies"
        )
    needs_tensorflow = out.name.endswith(export.KERAS_SUFFIXES)
    if needs_tensorflow:
        prepare_tensorflow()
    with without_tensorflows_own() if needs_tensorflow else nullcontext():
        source = parse(checkpoint_dir)
        number = export.export(source, out, best, isinstance(source, Path) and has_live_run(source))
    typer.echo(f"{out}: {counted(number, 'tensor')}")


@app.command()
def reset(
    run: Annotated[str, typer.Argument(help="The run whose state is deleted.")],
    ps: Annotated[list[str], typer.Option(metavar="HOST:PORT", help="A running ps; its control port is PORT + 1.")],
    tls: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For ps with TLS: the client/ folder that `psfleet certs` made.")
    ] = None,
) -> None:
    """Delete a run's state on running parameter servers; other runs on them are unaffected."""
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
        typer.echo(f"{address.data}: {'deleted' if found else 'no state of'} run {run}")


def main() -> None:
    """Runs the command line; a PsfleetError is printed as one line and sets the exit code."""
    try:
        with guarded():
            code = _exit_code()
    except SystemExit as exit_:
        code = exit_.code
    except KeyboardInterrupt:
        # While Typer makes the commands; Click handles it after that.
        code = fleets.INTERRUPTED
    sys.exit(code)


@functools.cache
def command() -> Callable[[], object]:
    """The command line, which takes its arguments from `sys.argv`; to make it takes 0.06 CPU seconds."""
    return typer.main.get_command(app)


def _exit_code() -> str | int | None:
    """Runs the command line; its exit code."""
    log_plain()
    try:
        command()()
    except SystemExit as exit_:
        return errors.USAGE if exit_.code == TYPER_USAGE else exit_.code
    except PsfleetError as error:
        return _print_error(error)
    except Exception:
        traceback.print_exc()
        return errors.BUG
    return errors.DONE


def _print_error(error: PsfleetError) -> int:
    if error.details:
        typer.echo(error.details.rstrip(), err=True)
    typer.echo(f"psfleet: {error}", err=True)
    return error.exit_code
