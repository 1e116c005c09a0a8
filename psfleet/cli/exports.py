"""`psfleet export`: a trained model as a versioned folder for a server."""

from __future__ import annotations

import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from psfleet.checkpoint import versions
from psfleet.checkpoint.deleted import is_deleted, use_found
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.cli.termination import ended_by_sigterm
from psfleet.errors import DeadlineError, UsageError
from psfleet.job.job import parse_job
from psfleet.job.sections import Deadlines
from psfleet.launch.runs import has_live_run
from psfleet.processes.validation import summary_of
from psfleet.service.process_environment import require_tensorflow
from psfleet.sweep.results import BEST

MODULE = "worker_service.export"
DEFAULT_EXAMPLES = 500


def export(
    run: Annotated[
        str, typer.Argument(help="A run folder, its checkpoints/ folder, or one checkpoint; or the URL of a store.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the model's versions; written is DIR/STEP.")],
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="saved_model (TensorFlow Serving), keras or litert.")
    ] = versions.SAVED_MODEL,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
    quantize: Annotated[
        str | None, typer.Option(metavar="TYPE", help="litert: int8, for weights and activations.")
    ] = None,
    calibrate: Annotated[
        int | None,
        typer.Option(min=1, help=f"int8: the number of training examples it is calibrated on; {DEFAULT_EXAMPLES}."),
    ] = None,
    max_loss: Annotated[
        float | None, typer.Option(min=0, help="litert: by how much the main metric may be worse; else exit code 70.")
    ] = None,
    timeout_secs: Annotated[
        float | None, typer.Option(min=1, help="Time limit; by default the sum of the job's deadlines for a start.")
    ] = None,
) -> None:
    """Export the model of a run with its trained weights, as a version that TensorFlow Serving loads."""
    require_tensorflow()
    if kind not in versions.FORMATS:
        raise UsageError(f"--format {kind}: expected one of {', '.join(versions.FORMATS)}")
    _check_options(kind, quantize, calibrate, max_loss)
    source = parse(run)
    if isinstance(source, Path) and (source / BEST).is_file():
        raise UsageError(
            f"{run} has the results of a study, expected a run: "
            f"`psfleet train {shlex.quote(str(source / BEST))}` trains the best trial again"
        )
    examples = None if quantize is None else calibrate or DEFAULT_EXAMPLES

    def chosen() -> Checkpoint:
        return versions.find(source, step, best, isinstance(source, Path) and has_live_run(source))

    def exported(checkpoint: Checkpoint) -> versions.Version:
        request = versions.Request(checkpoint=str(checkpoint.folder), kind=kind, calibrate=examples, max_loss=max_loss)
        return _exported(checkpoint, request, out, timeout_secs or default_secs(checkpoint))

    with ended_by_sigterm():
        found = use_found(chosen, exported, lambda each: is_deleted(each, source, step))
    typer.echo(f"{found.folder}: {kind} of step {found.step}, {found.num_bytes:,} bytes; {found.summary}")


def _exported(checkpoint: Checkpoint, request: versions.Request, out: Path, secs: float) -> versions.Version:
    """Exports a checkpoint in a process of its own; raises as `versions.export_version` and `summary_of`."""

    def write(folder: Path) -> str:
        try:
            return summary_of(MODULE, str(folder.absolute()), request.model_dump_json(), "exports the model", secs)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"the export of step {checkpoint.step} as {request.kind}", secs) from None

    return versions.export_version(checkpoint, out, write)


def default_secs(checkpoint: Checkpoint) -> float:
    """How long an export may take, by the deadlines of the job that wrote the checkpoint."""
    deadlines = Deadlines() if checkpoint.job is None else parse_job(checkpoint.job).deadlines
    return deadlines.start_secs + deadlines.first_secs + deadlines.stall_secs


def _check_options(kind: str, quantize: str | None, calibrate: int | None, max_loss: float | None) -> None:
    """Raises UsageError for options that do not fit the format, and without the package of litert."""
    if quantize not in (None, "int8"):
        raise UsageError(f"--quantize {quantize}: expected int8")
    if kind != versions.LITERT and (quantize is not None or max_loss is not None):
        raise UsageError(f"--format {kind}: --quantize and --max-loss need --format {versions.LITERT}")
    if quantize is None and calibrate is not None:
        raise UsageError(f"--calibrate {calibrate} needs --quantize int8")
    if kind == versions.LITERT and find_spec("ai_edge_litert") is None:
        raise UsageError("--format litert: ai-edge-litert is not installed, expected pip install 'psfleet[litert]'")
