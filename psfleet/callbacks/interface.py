"""Interface of callbacks, which receive the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.report.schema import Report


@dataclass(frozen=True)
class RunInfo:
    """The run that a callback belongs to.

    Attributes:
        name: `name` of the job.
        run: Identifier of this attempt; a resumed run has another one.
        job: The resolved job, as JSON values.
        folder: The run folder.
        state: A folder for the callback's own files, which exists. It is kept until the run starts anew (`--fresh`).
        step: Number of updates that the model includes; above 0 if the run is resumed, or its chief was replaced.
    """

    name: str
    run: str
    job: Mapping[str, Any]
    folder: Path
    state: Path
    step: int


class Callback:
    """Receives the progress of a run; a subclass overrides what it needs.

    The chief calls the methods of all callbacks on one thread beside training, which waits for none of them. If the
    chief is replaced, its successor makes new objects and calls `on_start` again. An exception is recorded as an event,
    and training continues. While a method takes long, calls of `on_step` are dropped, and no others.

    Attributes:
        every_steps: Number of steps for each call of `on_step`.
    """

    every_steps: int = 10

    def on_start(self, run: RunInfo) -> None:
        """Training starts, or continues with another chief. Called before all other methods, also without training."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was made; after a rollback it is made, and reported, again.

        Args:
            step: Number of updates that the model includes.
            metrics: `loss` of the chief's batch, `step_secs` and `examples_per_sec` of all workers.
        """

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        """The model was evaluated.

        Args:
            step: Number of updates that the evaluated weights include.
            metrics: By name, in the units of the program's metrics.
        """

    def on_checkpoint(self, step: int, folder: Path | str) -> None:
        """A checkpoint is complete.

        Args:
            step: Number of updates that it includes.
            folder: Of the checkpoint. Older checkpoints are deleted: see `checkpoint.keep` of the job. With
                `checkpoint.store`: its URL, a str.
        """

    def on_end(self, report: Report) -> None:
        """The run is over, and its report is written. The process ends a few seconds later."""
