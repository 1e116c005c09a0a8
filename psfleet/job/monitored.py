"""Sections of the job file that watch a metric of the evaluations, such as the best checkpoint and early stopping."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from psfleet.errors import BadJobError
from psfleet.job.fields import NonNegative, PositiveInt, Section

if TYPE_CHECKING:
    from psfleet.job.job import Job


class Monitored(Section):
    """A metric of the evaluations, and which of its values are better."""

    metric: str = Field(min_length=1, description="Name of the metric, as in `eval` of the report.")
    direction: Literal["maximize", "minimize"] = Field(
        "maximize",
        description="Whether higher or lower values are better. It is not derived from the metric's name, but for "
        "`loss` and names that end in `_loss` it must be set.",
    )

    def gain(self, value: float, than: float | None) -> float:
        """By how much a value is better than another one (negative: worse), in the metric's unit.

        Args:
            value: A value that is not finite is never better.
            than: None: any finite value is better.
        """
        if not math.isfinite(value):
            return -math.inf
        if than is None:
            return math.inf
        return value - than if self.direction == "maximize" else than - value

    @model_validator(mode="after")
    def _direction_is_set_for_a_loss(self) -> Monitored:
        if is_loss(self.metric) and "direction" not in self.model_fields_set:
            raise ValueError(f"direction is missing for metric {self.metric}, expected minimize or maximize")
        return self


class Best(Monitored):
    """The checkpoint with the best evaluation, which is kept in addition to the newest ones.

    Evaluations are then made of checkpoints: each ps also writes its part at the steps of `evaluate.every_steps`.
    """


class Stop(Monitored):
    """Early stopping: the run is done when a metric has stopped improving."""

    patience: PositiveInt = Field(
        description="Number of evaluations in a row without an improvement after which training ends. One whose value "
        "is not finite counts as one without an improvement."
    )
    min_delta: NonNegative = Field(
        0.0,
        description="Smallest difference from the last improvement that is an improvement; 0: any difference.",
    )

    def is_improvement(self, value: float, than: float | None) -> bool:
        """Whether a value is an improvement over the best one so far; None: there is none."""
        gain = self.gain(value, than)
        return gain > 0 and gain >= self.min_delta


def monitored(job: Job) -> dict[str, Monitored]:
    """The sections of a job that watch a metric, by their names in the job file."""
    schedule = job.schedule
    sections: Mapping[str, Monitored | None] = {
        "evaluate.stop": job.evaluate.stop,
        "checkpoint.best": job.checkpoint.best,
        "optimizer.schedule": schedule if isinstance(schedule, Monitored) else None,
    }
    return {name: section for name, section in sections.items() if section is not None}


def evaluations_decide(job: Job) -> bool:
    """Whether the recorded evaluations decide how training continues: when it ends, or at which learning rate."""
    return bool(monitored(job).keys() - {"checkpoint.best"})


def is_loss(metric: str) -> bool:
    """Whether a metric is a loss by its name, such as that of one output of a model."""
    return metric == "loss" or metric.endswith("_loss")


def main_metric(job: Job | None, names: Collection[str]) -> str:
    """The metric that stands for a run where only one is shown; empty if there is none.

    The one that the job watches for its best checkpoint, or for its end; or else accuracy, the first one that is no
    loss, or the loss.

    Args:
        job: None: it is not known.
        names: Of the metrics of an evaluation.
    """
    watched = {} if job is None else monitored(job)
    wanted = [watched[section].metric for section in ("checkpoint.best", "evaluate.stop") if section in watched]
    others = [name for name in names if not is_loss(name)]
    return next((name for name in [*wanted, "accuracy", *others, "loss", *names] if name in names), "")


def require_schedule(job: Job) -> None:
    """Refuses a job that watches a metric and evaluates only at the end.

    Raises:
        ValueError: `evaluate.every_steps` is missing.
    """
    if job.evaluate.every_steps is None and (names := monitored(job)):
        raise ValueError(f"evaluate.every_steps is null, expected a number of steps with {' and '.join(names)}")


def require_evaluation(job: Job, is_evaluated: bool) -> None:
    """Refuses a job that watches a metric of a program without evaluation data.

    Raises:
        BadJobError: `is_evaluated` is false.
    """
    if not is_evaluated and (names := monitored(job)):
        raise BadJobError(
            f"{' and '.join(names)} need evaluations, but program {job.program!r} has no evaluation data; expected "
            "a program with `evaluate`"
        )


def require_metrics(job: Job, names: Collection[str]) -> None:
    """Refuses a job that watches a metric that the evaluations do not have.

    Raises:
        BadJobError: Names the metrics there are.
    """
    for section, watched in monitored(job).items():
        if watched.metric not in names:
            raise BadJobError(
                f"{section}.metric is {watched.metric!r}, expected one of the program's metrics: "
                f"{', '.join(sorted(names)) or 'there are none'}"
            )
