"""Curves from files that grow over restarts, rollbacks and resumed runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class OfStep(Protocol):
    """A record of a step."""

    @property
    def step(self) -> int:
        """The global step."""


OfStepT = TypeVar("OfStepT", bound=OfStep)


def without_undone(records: Iterable[OfStepT]) -> list[OfStepT]:
    """Records by ascending step, without those that a rollback has undone.

    Args:
        records: In the order in which they were written: each replaces all before it of its step or a higher one.
    """
    kept: list[OfStepT] = []
    for record in records:
        while kept and kept[-1].step >= record.step:
            kept.pop()
        kept.append(record)
    return kept
