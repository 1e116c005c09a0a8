"""`psfleet export`: a trained model as a versioned folder for a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.launch.runs import has_live_run
from psfleet.service.settings import prepare_tensorflow
from psfleet.service.stderr_filter import without_tensorflows_own


def export(
    run: Annotated[
        str, typer.Argument(help="A run folder, its checkpoints/ folder, or one checkpoint; or the URL of a store.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the model's versions; written is DIR/STEP.")],
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="saved_model (TensorFlow Serving) or keras.")
    ] = versions.SAVED_MODEL,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
) -> None:
    """Export the Keras model of a run with its trained weights, as a version that TensorFlow Serving loads."""
    prepare_tensorflow()
    with without_tensorflows_own():
        source = parse(run)
        found = versions.export_version(source, out, kind, step, isinstance(source, Path) and has_live_run(source))
    typer.echo(f"{found.folder}: {kind} of step {found.step}, {found.num_bytes:,} bytes")
