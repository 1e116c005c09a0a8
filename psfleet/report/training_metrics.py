"""Schema of `training_metrics.jsonl`: the metrics of a program over its training batches, as the chief records them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from psfleet.report.json_lines import StepLines
from psfleet.report.records import StepRecord

MEAN_LOSS = "mean_loss"
"""Name of the mean of the losses; `loss` in the history is that of the chief's newest batch."""


class TrainingMetrics(StepRecord):
    """Metrics of the program over training batches; one line of `training_metrics.jsonl`."""

    metrics: dict[str, float] = Field(
        description="Metrics by name, in the units of the program's metrics, over the batches of all workers of the "
        "quorum in the last `summaries.every_steps` steps; `mean_loss` is the mean of their losses."
    )


class TrainingMetricsLog(StepLines[TrainingMetrics]):
    """`training_metrics.jsonl`: the training metrics of a run folder, which continue like its history."""

    FILE_NAME: ClassVar[str] = "training_metrics.jsonl"
    _record = TrainingMetrics
