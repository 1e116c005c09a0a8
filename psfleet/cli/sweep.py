"""`psfleet sweep`: the trials of a study."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from psfleet.cli.output import progress_console
from psfleet.errors import SIGNAL_BASE
from psfleet.job import trial_records
from psfleet.sweep import results
from psfleet.sweep.driver import Listener, Progress
from psfleet.sweep.driver import sweep as run_study
from psfleet.sweep.study_file import Study, load_study


def sweep(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The folder of the results; studies/<name> by default.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the results of an earlier study first.")] = False,
) -> None:
    """Train a job with different settings, one trial per worker; continue the study if it was interrupted."""
    loaded = load_study(study)
    folder = out if out is not None else Path("studies") / loaded.study.name
    console = progress_console()
    try:
        found = run_study(loaded, folder, fresh, _Lines(console, loaded.study))
    except KeyboardInterrupt:
        _print(console, "interrupted: the same command continues the study, and repeats no finished trial")
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
    best = found.best[0]
    _print(console, f"best: trial {best.number}, {loaded.study.objective.metric} {best.value:.6g}, {_values(best)}")
    names = (results.REPORT, results.TRIALS, results.BEST, "weights")
    _print(console, ", ".join(str(folder / name) for name in names))


class _Lines(Listener):
    """Prints a line for each finished trial."""

    def __init__(self, console: Console, study: Study) -> None:
        self._console = console
        self._metric = study.objective.metric

    def finished(self, trial: Any, progress: Progress) -> None:
        """See `Listener`."""
        if trial.state.name == "PRUNED":
            result = f"pruned at step {trial.last_step}, {self._metric} {trial.value:.6g}"
        elif trial.value is None:
            result = f"failed: {trial.user_attrs.get(trial_records.ERROR)}"
        else:
            result = f"{self._metric} {trial.value:.6g}, best {progress.best[0].value:.6g}"
        number = f"{len(progress.finished)} of {progress.total}"
        _print(self._console, f"{number}: trial {trial.number} ({_values(trial)}): {result}")

    def lost(self, text: str) -> None:
        """See `Listener`."""
        _print(self._console, text)


def _values(trial: Any) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial.params.items()
    )


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
