"""Members of a service, the ways to them, and a batch that they answer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
        answered: The number of the batch that it has answered last, and when on the same clock.
        is_late: Whether it is not asked, because it has not answered.
    """

    index: int
    link: Link
    step: int
    outstanding: set[int] = field(default_factory=set)
    waited_since: float = 0.0
    answered: tuple[int, float] = (0, -math.inf)
    is_late: bool = False

    def silent_since(self, batch: Batch, is_replaced: bool) -> float:
        """Since when it has answered nothing, given a batch that it has not answered.

        An answer to a batch before that counts, unless another member is sent the batch in its place.
        """
        since = batch.asked[self.index]
        since = min(since, self.waited_since) if self.outstanding else since
        number, answered = self.answered
        return max(since, answered) if number < batch.number and not is_replaced else since

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
        until: When it is answered without the members that have not replied, on the event loop's clock.
        release: Called when it waits for late members only.
        asked: When the members were sent it, by their indices; on the same clock.
        waits_for: Those of them whose prediction would be used.
        predictions: The first one of each model, by its index.
        look: The next look at what it waits for.
    """

    number: int
    inputs: Inputs
    done: asyncio.Future[None]
    until: float
    release: Callable[[], object]
    asked: dict[int, float] = field(default_factory=dict)
    waits_for: set[int] = field(default_factory=set)
    predictions: dict[int, Prediction] = field(default_factory=dict)
    look: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.inputs[0])

    @property
    def has_answer(self) -> bool:
        """Whether a prediction is there that is no error."""
        return any(not each.error for each in self.predictions.values())

    def wait_for(self, members: Collection[int], now: float) -> None:
        """Takes account of members that are sent it."""
        self.asked |= dict.fromkeys(members, now)
        self.waits_for.update(members)

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


def newest_steps(members: Mapping[int, Member], num_models: int) -> dict[int, int]:
    """The newest step of each model that has a member, in the models' order.

    Args:
        members: By their indices; member i has model i modulo the number of models.
        num_models: Of the service.
    """
    steps: dict[int, int] = {}
    for index, member in members.items():
        model = index % num_models
        steps[model] = max(member.step, steps.get(model, member.step))
    return dict(sorted(steps.items()))
