"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Changes a field of the job; dots reach inside.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what an earlier run left there.")]
Out = Annotated[Path | None, typer.Option(help="The run's folder; runs/<name> by default.")]
