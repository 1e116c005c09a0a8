"""What the driver of a prediction in a container predicts."""

from __future__ import annotations

from typing import ClassVar

from psfleet.job.access import Access
from psfleet.job.fields import PositiveInt


class PredictionOrder(Access):
    """The arguments of `psfleet predict`, for a container.

    Attributes:
        source: As the container sees it: a run folder, a checkpoint, the folder of a study, or the URL of a store.
        step: Of the checkpoint; None: the newest, or the best.
        best: Whether the best checkpoint is used, not the newest.
        data: `module:callable` of the data set.
        out: Name of the file, which is written into the folder of results.
        workers: Number of workers.
        chosen: How `source` was chosen among the checkpoints of a run: newest, best, or a step; empty: the user has
            named it, or the driver chooses. For commands that attach to the prediction; drivers do not read it.
    """

    DESCRIPTION: ClassVar[str] = "what to predict"

    source: str
    step: int | None = None
    best: bool = False
    data: str
    out: str
    workers: PositiveInt
    chosen: str = ""
