"""Progress of a study as lines for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psfleet.job import trial_records
from psfleet.plurals import counted

if TYPE_CHECKING:
    from psfleet.sweep.driver import Progress


def starting_line(name: str, progress: Progress, workers: int) -> str:
    """What is started for the trials that are not finished.

    Args:
        name: Of the study.
        workers: Their number.
    """
    left = counted(progress.total - len(progress.finished), "trial")
    left += f" of {progress.total}, the others are finished" if progress.finished else ""
    return f"{name}: starting {counted(workers, 'worker')} for {left} (importing TensorFlow takes some seconds)"


def finished_line(trial: Any, progress: Progress, metric: str) -> str:
    """What a trial has reached, and how far the study is.

    Args:
        metric: The objective.
    """
    if trial.state.name == "PRUNED":
        result = f"pruned at step {trial.last_step}, {metric} {trial.intermediate_values[trial.last_step]:.6g}"
    elif trial.value is None:
        result = f"failed: {trial.user_attrs.get(trial_records.ERROR)}"
    else:
        result = f"{metric} {trial.value:.6g}, best {progress.best[0].value:.6g}"
    number = f"{len(progress.finished)} of {progress.total}"
    return f"{number}: trial {trial.number} ({parameters_text(trial)}): {result}"


def parameters_text(trial: Any) -> str:
    """The values of a trial's fields."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in trial.params.items()
    )
