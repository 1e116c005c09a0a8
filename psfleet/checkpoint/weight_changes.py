"""Ids of the calls that replaced the weights of a run, in order; each manifest has them, so a restore keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psfleet.checkpoint.manifest import Checkpoint

CHANGES = "weight_changes"
"""Key in a manifest's `extra`."""
MAX_CALLS = 16
"""Calls whose ids are kept: no call is repeated after so many others."""


@dataclass(frozen=True)
class WeightChanges:
    """The changes before a checkpoint, itself included.

    Attributes:
        number: How many there are.
        calls: The ids of the last `MAX_CALLS`, the newest last.
    """

    number: int = 0
    calls: tuple[str, ...] = ()

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> WeightChanges:
        """Reads the changes from the `extra` of a manifest."""
        found = extra.get(CHANGES, {"number": 0, "calls": []})
        return cls(int(found["number"]), tuple(found["calls"]))

    def followed_by(self, call: str) -> WeightChanges:
        """The changes with one more, by a call."""
        return WeightChanges(self.number + 1, (*self.calls, call)[-MAX_CALLS:])

    def as_extra(self) -> dict[str, Any]:
        """The entry for the `extra` of a manifest; empty if there are no changes."""
        return {CHANGES: {"number": self.number, "calls": list(self.calls)}} if self.number else {}


def kept_changes(newest: Checkpoint | None) -> dict[str, Any]:
    """The entry that each manifest copies from the one before it, so that a repeated call is recognized."""
    return {} if newest is None else WeightChanges.of(newest.extra).as_extra()
