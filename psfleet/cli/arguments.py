"""Arguments that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the job, for example train.steps=100."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete the checkpoints and results of earlier runs first.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run folder; runs/<name> by default, or runs/<name>-<platform> if the former has a run elsewhere."
    ),
]
