"""Arguments that several commands have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

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
OnMachine = Annotated[
    str | None,
    typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes; processes of this machine by default."),
]
LiveOn = Annotated[
    str | None,
    typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes; by default a run on this machine."),
]
OnFleet = Annotated[
    str | None, typer.Option("--fleet", metavar="NAME", help="Train on all ps of this fleet (`psfleet fleet up`).")
]
Fleet = Annotated[str, typer.Argument(metavar="JOB", help="The job file, or the job's name.", show_default=False)]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="Kubernetes: the context of KUBECONFIG; the current one by default.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Kubernetes: that of the context by default.")
]
LongNamespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Kubernetes: that of the context by default.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete the checkpoints and results of earlier runs first.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run folder; runs/<name> by default, or runs/<name>-<platform> if the former has a run elsewhere."
    ),
]


def override_words(overrides: list[str] | None, out: Path | None) -> list[str]:
    """The words of `--set` and `--out`, for a command line that is shown to the user."""
    words = [word for text in overrides or () for word in ("--set", text)]
    return [*words, *option_words({"--out": out})]


def option_words(options: Mapping[str, object]) -> list[str]:
    """The words of those options that have a value."""
    return [word for name, value in options.items() if value is not None for word in (name, str(value))]
