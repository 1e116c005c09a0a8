"""What a worker of a study needs to take trials: where the study's storage is served, and the objective."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError

from psfleet.errors import BadJobError
from psfleet.job.fields import PositiveInt, Section


class TrialAccess(Section):
    """Access of one worker to a study.

    Attributes:
        study: Its name in the storage.
        socket: Path of the Unix socket on which Optuna's gRPC proxy serves the storage.
        metric: The objective, a metric of the program's evaluation.
        prune_steps: Steps between evaluations after which a trial may be pruned; None: none is pruned.
    """

    study: str
    socket: str
    metric: str
    prune_steps: PositiveInt | None = None

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """The inverse of `model_dump_json`.

        Raises:
            BadJobError: The text is something else.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise BadJobError(f"{source}: expected access to a study as JSON") from error
