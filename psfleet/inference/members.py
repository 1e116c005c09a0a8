"""Members of a service, the ways to them, and a batch that they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from psfleet.inference.batches import Inputs
from psfleet.inference.predictions import Prediction

logger = logging.getLogger("psfleet.front")


class Link(Protocol):
    """The way to a member."""

    def send(self, number: int, inputs: Inputs) -> None:
        """Sends a batch; does not block. The reply reaches `Ensemble.reply`."""


class Route(Protocol):
    """One way to all members for queries; their links are for signs of life then."""

    def has(self, index: int) -> bool:
        """Whether a member takes queries this way now."""

    def send(self, number: int, inputs: Inputs, members: Sequence[int]) -> None:
        """Sends a batch to members; does not block. The predictions reach `Ensemble.take`."""


@dataclass
class Member:
    """A member that has joined.

    Attributes:
        index: Of the service.
        link: The way to it.
        step: Of its weights, as of its last reply.
        outstanding: Numbers of the batches that it has not answered.
        waited_since: When it was sent the first of them, or has last answered; on the event loop's clock.
        is_late: Whether it is not asked, because it has not answered.
    """

    index: int
    link: Link
    step: int
    outstanding: set[int] = field(default_factory=set)
    waited_since: float = 0.0
    is_late: bool = False

    def silent_since(self, batch: Batch) -> float:
        """Since when it has answered nothing, given a batch that it has not answered."""
        return min(batch.sent, self.waited_since) if self.outstanding else batch.sent

    def set_late(self, why: str) -> None:
        """It is not asked; says why, unless it is late already."""
        if not self.is_late:
            logger.warning("member %d %s", self.index, why, extra={"event": "member_late", "member": self.index})
        self.is_late = True

    def set_present(self) -> None:
        """It has answered: it is asked again, unless it was sent more."""
        if self.is_late and not self.outstanding:
            self.is_late = False
            logger.info("member %d answers again", self.index, extra={"event": "member_back", "member": self.index})


@dataclass
class Batch:
    """A batch that members answer.

    Attributes:
        number: Its number.
        inputs: `[rows, ...]` each.
        done: Is set when it waits for no member.
        sent: When it was sent first, on the event loop's clock.
        until: When it is answered without the members that have not replied, on the same clock.
        release: Called when it waits for late members only.
        asked: Indices of the members that were sent it.
        waits_for: Those of them whose prediction would be used.
        predictions: The first one of each model, by its index.
        look: The next look at what it waits for.
    """

    number: int
    inputs: Inputs
    done: asyncio.Future[None]
    sent: float
    until: float
    release: Callable[[], object]
    asked: set[int] = field(default_factory=set)
    waits_for: set[int] = field(default_factory=set)
    predictions: dict[int, Prediction] = field(default_factory=dict)
    look: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.inputs[0])

    def wait_no_longer(self, members: set[int]) -> None:
        """Gives members up."""
        self.waits_for -= members
        if not self.waits_for and not self.done.done():
            self.done.set_result(None)


def idlest(members: set[int], batches: Iterable[Batch]) -> int:
    """The member that has the fewest batches to answer."""
    waiting = dict.fromkeys(members, 0)
    for batch in batches:
        for index in batch.waits_for & waiting.keys():
            waiting[index] += 1
    return min(waiting, key=lambda index: (waiting[index], index))
