"""Sections of the job file that watch a metric of the evaluations, such as the best checkpoint and early stopping."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from psfleet.job.fields import NonNegative, PositiveInt, Section


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


def is_loss(metric: str) -> bool:
    """Whether a metric is a loss by its name, such as that of one output of a model."""
    return metric == "loss" or metric.endswith("_loss")
