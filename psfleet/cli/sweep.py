"""`psfleet sweep`: the trials of a study."""

from __future__ import annotations

import shlex
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from psfleet.cli.arguments import Context, Namespace, OnMachine, option_words
from psfleet.cli.detaching import detaching
from psfleet.cli.output import progress_console
from psfleet.errors import SIGNAL_BASE
from psfleet.platforms.choice import platform, require_no_cluster
from psfleet.sweep import results
from psfleet.sweep.driver import Listener, Progress
from psfleet.sweep.driver import sweep as run_study
from psfleet.sweep.loaded_study import LoadedStudy, load_study
from psfleet.sweep.on_platform import sweep_on
from psfleet.sweep.progress_lines import finished_line, parameters_text, starting_line
from psfleet.sweep.study_file import Study


def sweep(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The folder of the results; studies/<name> by default.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the results of an earlier study first.")] = False,
    on: OnMachine = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Train a job with different settings, one trial per worker; continue the study if it was interrupted."""
    loaded = load_study(study)
    folder = out if out is not None else Path("studies") / loaded.study.name
    console = progress_console()
    if on is None:
        require_no_cluster(context, namespace)
        found = _here(loaded, folder, fresh, console)
    else:
        where = ["--on", on, *option_words({"--context": context, "--namespace": namespace})]
        again = shlex.join(["psfleet", "sweep", str(study), *option_words({"--out": out}), *where])
        down = shlex.join(["psfleet", "down", loaded.study.name, *where])
        show = partial(_print, console)
        with detaching(show, "study", again, again + " --fresh" * fresh, down) as on_start:
            place = platform(on, context, namespace)
            found = sweep_on(place, loaded, folder, on, fresh, show, on_start)
    best = found.best[0]
    _print(
        console, f"best: trial {best.number}, {loaded.study.objective.metric} {best.value:.6g}, {parameters_text(best)}"
    )
    names = (results.REPORT, results.TRIALS, results.BEST, "weights")
    _print(console, ", ".join(str(folder / name) for name in names))


def _here(loaded: LoadedStudy, folder: Path, fresh: bool, console: Console) -> Progress:
    """On processes of this machine."""
    try:
        return run_study(loaded, folder, fresh, _Lines(console, loaded.study))
    except KeyboardInterrupt:
        _print(console, "interrupted: the same command continues the study, and repeats no finished trial")
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None


class _Lines(Listener):
    """Prints a line at the start, and for each finished trial."""

    def __init__(self, console: Console, study: Study) -> None:
        self._console = console
        self._name = study.name
        self._metric = study.objective.metric

    def starting(self, progress: Progress, workers: int) -> None:
        """See `Listener`."""
        _print(self._console, starting_line(self._name, progress, workers))

    def finished(self, trial: Any, progress: Progress) -> None:
        """See `Listener`."""
        _print(self._console, finished_line(trial, progress, self._metric))

    def lost(self, text: str) -> None:
        """See `Listener`."""
        _print(self._console, text)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
