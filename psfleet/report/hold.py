"""Record of the step at which a run is held: `hold.json`, which outlives its chief."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from psfleet.errors import BadJobError
from psfleet.files import replace_file

FILE_NAME = "hold.json"
AT_START = -1
"""The step that the run starts from, which its chief finds."""
MAX_EARLIER = 16
"""Number of calls before the last one that are recorded: handles may repeat them."""


@dataclass(frozen=True)
class HoldRecord:
    """The step at which a run is held, with the calls that have set it.

    Attributes:
        step: At which the run is held, or `AT_START`.
        call: Id of the call that has set the step. A handle repeats a call after a loss of the chief, which then must
            change nothing.
        earlier: By id, the steps that the last `MAX_EARLIER` calls before have set; they can be repeated, too.
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
