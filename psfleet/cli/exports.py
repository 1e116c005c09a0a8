"""`psfleet export`: a trained model as a versioned folder for a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.errors import UsageError
from psfleet.launch.runs import has_live_run
from psfleet.processes.validation import summary_of
from psfleet.service.settings import require_tensorflow

MODULE = "worker_service.export"
FORMATS = (versions.SAVED_MODEL, versions.KERAS)


def export(
    run: Annotated[
        str, typer.Argument(help="A run folder, its checkpoints/ folder, or one checkpoint; or the URL of a store.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the model's versions; written is DIR/STEP.")],
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="saved_model (TensorFlow Serving) or keras.")
    ] = versions.SAVED_MODEL,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
) -> None:
    """Export the Keras model of a run with its trained weights, as a version that TensorFlow Serving loads."""
    require_tensorflow()
    if kind not in FORMATS:
        raise UsageError(f"--format {kind}: expected one of {', '.join(FORMATS)}")
    source = parse(run)
    checkpoint = versions.find(source, step, best, isinstance(source, Path) and has_live_run(source))
    request = versions.Request(checkpoint=str(checkpoint.folder), kind=kind)

    def write(folder: Path) -> str:
        return summary_of(MODULE, str(folder.absolute()), request.model_dump_json(), "exports the model")

    found = versions.export_version(checkpoint, out, write)
    typer.echo(f"{found.folder}: {kind} of step {found.step}, {found.num_bytes:,} bytes; {found.summary}")
