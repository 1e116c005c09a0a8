"""Base class of what a launcher passes to a process as JSON: the access to a study, a service or a standing fleet."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import ValidationError

from psfleet.errors import BadJobError
from psfleet.job.fields import Section


class Access(Section):
    """Fields that are written by `model_dump_json` and read by `from_json`.

    Attributes:
        DESCRIPTION: What the text is expected to be, for messages.
    """

    DESCRIPTION: ClassVar[str]

    @classmethod
    def from_json(cls, text: str, source: str) -> Self:
        """The inverse of `model_dump_json`.

        Args:
            source: Where the text is from, for messages.

        Raises:
            BadJobError: The text is something else.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise BadJobError(f"{source}: expected {cls.DESCRIPTION} as JSON") from error
