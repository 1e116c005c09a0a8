"""What a worker of a study needs to take trials: where the study's storage is served, and the objective."""

from __future__ import annotations

from typing import ClassVar

from psfleet.job.access import Access
from psfleet.job.fields import PositiveInt


class TrialAccess(Access):
    """Access of one worker to a study.

    Attributes:
        study: Its name in the storage.
        socket: Path of the Unix socket on which Optuna's gRPC proxy serves the storage; empty: the driver relays it.
        metric: The objective, a metric of the program's evaluation.
        prune_steps: Steps between evaluations after which a trial may be pruned; None: none is pruned.
    """

    DESCRIPTION: ClassVar[str] = "access to a study"

    study: str
    socket: str
    metric: str
    prune_steps: PositiveInt | None = None
