"""Schema of `history.jsonl`: the state of training at some of the chief's steps."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from psfleet.report.json_lines import StepLines
from psfleet.report.records import StepRecord


class Point(StepRecord):
    """Training state at one step; one line of `history.jsonl`."""

    loss: float = Field(
        description="The chief's training loss at this step, in the unit of the program's loss; in averaging mode the "
        "mean over the round that it ends; of several losses that of the step."
    )
    losses: dict[str, float] = Field(
        default_factory=dict, description="Of several losses the chief's newest training loss of each, by name."
    )
    step_secs: float = Field(description="Mean step time since the previous point, in seconds.")
    examples_per_sec: float = Field(description="Examples of used gradients per second since the previous point.")
    learning_rate: float | None = Field(
        None,
        description="Scheduled learning rate of the last of these updates, in async and ssp mode before the policy for "
        "stale gradients; null: it does not follow from the step.",
    )
    gradient_norm: float | None = Field(
        None,
        description="Global norm of the chief's gradient of this step before it was clipped; null: it was not "
        "computed. Without `optimizer.clip_norm` only the steps for which a point or summaries are expected compute "
        "it.",
    )
    training_seconds: float = Field(
        0.0, description="Seconds in which the chiefs of this attempt have trained; neither starting nor waiting."
    )


class History(StepLines[Point]):
    """`history.jsonl`: points appended by the chief, which continue over restarts, rollbacks and resumed runs."""

    FILE_NAME: ClassVar[str] = "history.jsonl"
    _record = Point
