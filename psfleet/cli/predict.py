"""`psfleet predict`: predictions of a data set by all workers at once."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from psfleet.cli.output import progress_console
from psfleet.cli.termination import ended_by_sigterm
from psfleet.errors import SIGNAL_BASE
from psfleet.predictions import files
from psfleet.predictions.driver import predict as predict_all
from psfleet.predictions.driver import require_callable, summary
from psfleet.predictions.source import find
from psfleet.service.cpu import num_cores
from psfleet.service.process_environment import require_tensorflow


def predict(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_STUDY",
            help="A run folder, one checkpoint, the URL of a store, or a study or its folder, for its best trial.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(metavar="MODULE:CALLABLE", help="Returns the data set; searched in the program's folder first."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="FILE.npz or FILE.parquet.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; one per core by default.")] = None,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
) -> None:
    """Predict a data set with a trained model, by worker processes at once, into one file."""
    require_tensorflow()
    require_callable(data)
    files.require_format(out)
    found = find(source, step, best)
    console = progress_console()
    number = workers or max(1, int(num_cores()))
    began = time.monotonic()
    try:
        with ended_by_sigterm():
            shares = predict_all(
                found, data, out, number, lambda text: console.print(text, markup=False, highlight=False)
            )
    except (KeyboardInterrupt, SystemExit) as error:
        console.print("interrupted: nothing was written", markup=False, highlight=False)
        if isinstance(error, SystemExit):
            raise
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
    typer.echo(summary(shares, found, out, number, time.monotonic() - began))
