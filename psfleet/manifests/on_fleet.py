"""The place of a run on a standing fleet."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Self

from psfleet.job.job import Job


@dataclass(frozen=True)
class OnFleet:
    """The place of a run on a standing fleet.

    Attributes:
        fleet: The fleet's name.
        run: The run's id. Its ps may still have the shards of an earlier run of this name, whose chief was lost before
            it could end the run.
    """

    fleet: str
    run: str

    @classmethod
    def of_new_run(cls, job: Job, fleet: str) -> Self:
        """The place of a new start of a run."""
        return cls(fleet, f"{job.name}-{secrets.token_hex(4)}")
