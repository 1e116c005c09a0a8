"""Arguments that several commands have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from psfleet.errors import UsageError
from psfleet.job.job import NAME_PATTERN, load_job

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the job, for example train.steps=100."),
]
On = Annotated[str, typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes.")]
OnOrHere = Annotated[
    str | None,
    typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes; by default runs on this machine, too."),
]
Fleet = Annotated[str, typer.Argument(metavar="JOB", help="The job file, or the job's name.", show_default=False)]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="Kubernetes: the context of KUBECONFIG; the current one by default.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Kubernetes: that of the context by default.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete the checkpoints and results of earlier runs first.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run folder; runs/<name> by default, or runs/<name>-<platform> if the former has a run elsewhere."
    ),
]


def name_of(text: str) -> str:
    """The name of a fleet, given as such or as a job file."""
    path = Path(text)
    if path.is_file():
        return load_job(path).name
    if re.fullmatch(NAME_PATTERN, text):
        return text
    raise UsageError(f"{text!r}: expected a job file that exists, or the name of a job")
