"""`psfleet predict`: predictions of a data set by all workers at once."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from psfleet.checkpoint.deleted import is_deleted
from psfleet.checkpoint.location import parse
from psfleet.cli.arguments import option_words
from psfleet.cli.detaching import detaching
from psfleet.cli.output import progress_console
from psfleet.cli.termination import ended_by_sigterm
from psfleet.errors import SIGNAL_BASE
from psfleet.platforms.choice import platform, require_known
from psfleet.predictions import files
from psfleet.predictions.driver import predict as predict_all
from psfleet.predictions.driver import require_callable, summary
from psfleet.predictions.on_platform import fleet_name, predict_on
from psfleet.predictions.pinned import pinned
from psfleet.predictions.platform_model import find_model
from psfleet.predictions.source import Source, find
from psfleet.service.cpu import num_cores
from psfleet.service.process_environment import require_tensorflow


def predict(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_STUDY",
            help="A run folder, one checkpoint, the URL of a store, or a study or its folder, for its best trial; with "
            "--on also a job file, for the results of its fleet there.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(metavar="MODULE:CALLABLE", help="Returns the data set; searched in the program's folder first."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="FILE.npz or FILE.parquet.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="One per core by default; with --on as many as the fleet of the job has.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="PLATFORM", help="compose or kubernetes; processes of this machine by default."),
    ] = None,
) -> None:
    """Predict a data set with a trained model, by all workers at once, into one file."""
    console = progress_console()

    def show(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    require_callable(data)
    files.require_name(out)
    if on is None:
        typer.echo(_here(source, data, out, workers, step, best, show))
        return
    require_known(on)
    place = platform(on)
    model = find_model(place, source, step, best)
    given = {"--data": data, "--out": out, "--workers": workers, "--step": step, "--on": on}
    again = shlex.join(["psfleet", "predict", source, *option_words(given), *["--best"][: int(best)]])
    down = shlex.join(["psfleet", "down", fleet_name(model), "--on", on])
    with ended_by_sigterm(), detaching(show, "prediction", again, again, down) as on_start:
        typer.echo(predict_on(place, model, data, out, workers or model.workers, show, on_start))


def _here(
    source: str,
    data: str,
    out: Path,
    workers: int | None,
    step: int | None,
    best: bool,
    show: Callable[[str], None],
) -> str:
    """Predicts by processes of this machine; returns what was predicted."""
    require_tensorflow()
    files.require_format(out)
    number = workers or max(1, int(num_cores()))

    def is_gone(found: Source) -> bool:
        return found.checkpoint is not None and is_deleted(found.checkpoint, parse(source), step)

    try:
        with ended_by_sigterm(), pinned(lambda: find(source, step, best), is_gone, out) as found:
            began = time.monotonic()
            shares = predict_all(found, data, out, number, show)
            secs = time.monotonic() - began
    except (KeyboardInterrupt, SystemExit) as error:
        show("interrupted: nothing was written")
        if isinstance(error, SystemExit):
            raise
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
    return f"{out}: {summary(shares, found, number, secs)}"
