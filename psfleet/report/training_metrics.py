"""Schema of `training_metrics.jsonl`: the metrics of a program over its training batches, as the chief records them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from psfleet.report.curves import without_undone
from psfleet.report.json_lines import JsonLines
from psfleet.report.records import Count, Record

MEAN_LOSS = "mean_loss"
"""Name of the mean of the losses; `loss` in the history is that of the chief's newest batch."""


class TrainingMetrics(Record):
    """Metrics of the program over training batches; one line of `training_metrics.jsonl`."""

    time: float = Field(description="Unix time in seconds.")
    step: Count = Field(description="Number of updates applied so far.")
    generation: Count = Field(description="Generation of the fleet's state at this step.")
    metrics: dict[str, float] = Field(
        description="Metrics by name, in the units of the program's metrics, over the batches of all workers of the "
        "quorum in the last `summaries.every_steps` steps; `mean_loss` is the mean of their losses."
    )


class TrainingMetricsLog(JsonLines[TrainingMetrics]):
    """`training_metrics.jsonl`: the training metrics of a run folder, which continue like its history."""

    FILE_NAME: ClassVar[str] = "training_metrics.jsonl"
    _record = TrainingMetrics

    def curve(self) -> list[TrainingMetrics]:
        """The metrics by ascending step, without those that a rollback has undone; see `readable`."""
        return without_undone(self.readable())
