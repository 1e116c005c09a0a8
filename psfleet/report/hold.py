"""Record of the step at which a run is held: `hold.json`, which outlives its chief."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from psfleet.atomic_file import replace_file
from psfleet.errors import BadJobError

FILE_NAME = "hold.json"
AT_START = -1
"""The step that the run starts from, which its chief finds."""
MAX_EARLIER = 16
"""Calls before the last one: each is of another handle, or is not repeated any more."""


@dataclass(frozen=True)
class HoldRecord:
    """A hold.

    Attributes:
        step: At which the run is held, or `AT_START`.
        call: Which has set it: one that is repeated after a loss of the chief changes nothing.
        earlier: The steps that calls before it have set, of the last `MAX_EARLIER`: they can be repeated, too.
    """

    step: int
    call: str = ""
    earlier: Mapping[str, int] = field(default_factory=dict)

    def step_of(self, call: str) -> int | None:
        """The step that a call has set; None: it has set none."""
        return self.step if call == self.call else self.earlier.get(call)

    def followed_by(self, step: int, call: str) -> HoldRecord:
        """The record once another call has set a step."""
        calls = {**self.earlier, **({self.call: self.step} if self.call else {})}
        return HoldRecord(step, call, dict(list(calls.items())[-MAX_EARLIER:]))

    def write(self, folder: Path) -> None:
        """Writes it atomically into a run folder.

        Raises:
            OSError: The disk refuses it.
        """
        replace_file(folder / FILE_NAME, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> HoldRecord | None:
        """That of a run folder; None: the run is not held.

        Raises:
            BadJobError: The file is no such record: whether the run is held is not known.
        """
        path = folder / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
            earlier = {str(call): int(step) for call, step in content.get("earlier", {}).items()}
            return cls(int(content["step"]), str(content["call"]), earlier)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadJobError(
                f"{path} is no record of a hold ({error!r}), expected one, or no file for a run that is not held"
            ) from error
