"""Sends queries to all members of an ensemble, and combines the predictions that arrive within the timeout.

Runs in one event loop. After a member has missed a timeout, queries do not wait for it until it has answered all that
it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from psfleet.inference.batches import Combined, Inputs
from psfleet.inference.predictions import Prediction, checked, mean, unfit, version_of, without_rows
from psfleet.inference.tensors import ModelMetadata, QueryError, Status

logger = logging.getLogger("psfleet.front")

MIN_SILENT_SECS = 3.0
"""For so long, or as long as queries wait, a member may answer nothing that it was sent."""
GRACE_SECS = 0.05
"""Time that members have at least for a batch which had to wait."""


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
class _Member:
    """A member that has joined.

    Attributes:
        outstanding: Numbers of the batches that it has not answered.
        waited_since: When it was sent the first of them, or has last answered; on the event loop's clock.
    """

    link: Link
    step: int
    outstanding: set[int] = field(default_factory=set)
    waited_since: float = 0.0
    is_late: bool = False


@dataclass
class _Batch:
    waits_for: set[int]
    done: asyncio.Future[None]
    rows: int
    predictions: dict[int, Prediction] = field(default_factory=dict)


class Ensemble:
    """The members of a service.

    Args of the constructor:
        name: Of the model.
        num_members: How many the service has.
        timeout_secs: From a query's arrival to its answer, with the predictions that are there.

    Attributes:
        num_members: As above.
        metadata: Inputs and outputs; None: no member has joined yet.
        route: Of queries; None: each member gets them by its link.
    """

    def __init__(self, name: str, num_members: int, timeout_secs: float) -> None:
        self.num_members = num_members
        self.metadata: ModelMetadata | None = None
        self.route: Route | None = None
        self._name = name
        self._timeout_secs = timeout_secs
        self._silent_secs = max(timeout_secs, MIN_SILENT_SECS)
        self._members: dict[int, _Member] = {}
        self._batches: dict[int, _Batch] = {}
        self._last = 0

    @property
    def num_ready(self) -> int:
        """How many members would be asked now."""
        return len(self._ready())

    @property
    def version(self) -> str:
        """The steps of the members' weights; see `version_of`."""
        return version_of([self._members[index].step for index in sorted(self._members)])

    def join(self, index: int, link: Link, step: int, metadata: ModelMetadata) -> str:
        """Adds a member, in place of the one that had its index.

        Returns:
            Why it cannot be added; empty: it was.
        """
        problem = unfit(metadata, self.metadata, self.num_members)
        if problem:
            return problem
        self.metadata = metadata
        self.leave(index)
        self._members[index] = _Member(link, step)
        return ""

    def leave(self, index: int) -> None:
        """Removes a member; no batch waits for it any more."""
        if self._members.pop(index, None) is not None:
            self._stop_waiting(index)

    def probe(self, now: float) -> None:
        """Sends a batch without rows to each member that has answered all before; one that is silent is late.

        Args:
            now: On the event loop's clock.
        """
        for index, member in self._members.items():
            if member.outstanding and not member.is_late and now - member.waited_since > self._silent_secs:
                text = "member %d has given no sign of life for %g s"
                logger.warning(text, index, self._silent_secs, extra={"event": "member_late", "member": index})
                self.miss(index)
            if self.metadata is not None and not member.outstanding:
                self._send(member, self._next(), [without_rows(each) for each in self.metadata.inputs], now)

    async def ask(self, inputs: Inputs, arrived: float) -> Combined:
        """The mean of the predictions of all members.

        Args:
            inputs: In the model's order, `[rows, ...]`.
            arrived: When the query arrived, on the event loop's clock.

        Raises:
            QueryError: No member is ready or answers in time, or all have failed.
        """
        ready = self._ready()
        if not ready:
            raise QueryError(Status.UNAVAILABLE, f"no member of {self._name} is ready")
        loop = asyncio.get_running_loop()
        number, batch = self._next(), _Batch(ready, loop.create_future(), len(inputs[0]))
        self._batches[number] = batch
        until = max(arrived + self._timeout_secs, loop.time() + GRACE_SECS)
        timer = loop.call_at(until, self._expire, number)
        try:
            if self.route is not None:
                self.route.send(number, inputs, sorted(ready))
            else:
                for index in sorted(ready):
                    self._send(self._members[index], number, inputs, loop.time())
            await batch.done
        finally:
            timer.cancel()
            del self._batches[number]
        return self._combined(batch.predictions)

    def reply(self, index: int, link: Link, number: int, prediction: Prediction, now: float) -> None:
        """Takes a reply; that of a member which has been replaced is ignored."""
        member = self._members.get(index)
        if member is None or member.link is not link:
            return
        member.step, member.waited_since = prediction.step, now
        member.outstanding.discard(number)
        if member.is_late and not member.outstanding:
            member.is_late = False
            logger.info("member %d answers again", index, extra={"event": "member_back", "member": index})
        self.take(index, number, prediction)

    def take(self, index: int, number: int, prediction: Prediction) -> None:
        """Takes a prediction, the first one that a member makes of a batch."""
        batch = self._batches.get(number)
        if batch is not None and index in batch.waits_for:
            batch.predictions[index] = checked(prediction, batch.rows)
            self._stop_waiting(index, number)

    def is_late(self, index: int) -> bool:
        """Whether a member is not asked, because it has not answered."""
        return index not in self._members or self._members[index].is_late

    def miss(self, index: int) -> None:
        """A member is known not to answer: nothing waits for it."""
        if index in self._members:
            self._members[index].is_late = True
            self._stop_waiting(index)

    def _ready(self) -> set[int]:
        return {
            index
            for index, member in self._members.items()
            if not member.is_late and (self.route is None or self.route.has(index))
        }

    def _expire(self, number: int) -> None:
        """Answers without the members that have not replied; they are late for all other batches, too."""
        for index in set(self._batches[number].waits_for):
            text = "member %d has not answered within %g s"
            logger.warning(text, index, self._timeout_secs, extra={"event": "member_late", "member": index})
            self.miss(index)

    def _stop_waiting(self, index: int, number: int | None = None) -> None:
        """Has a batch, or all, not wait for a member."""
        for batch in [self._batches[number]] if number is not None else self._batches.values():
            batch.waits_for.discard(index)
            if not batch.waits_for and not batch.done.done():
                batch.done.set_result(None)

    def _send(self, member: _Member, number: int, inputs: Inputs, now: float) -> None:
        if not member.outstanding:
            member.waited_since = now
        member.outstanding.add(number)
        member.link.send(number, inputs)

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _combined(self, predictions: dict[int, Prediction]) -> Combined:
        found = {index: each for index, each in predictions.items() if not each.error}
        if not found:
            errors = [each.error for each in predictions.values()]
            if errors:
                raise QueryError(Status.FAILED, errors[0])
            raise QueryError(
                Status.UNAVAILABLE, f"no member of {self._name} has answered within {self._timeout_secs:g} s"
            )
        # A member that has not answered stands with its newest known step, so that the version keeps its form.
        steps = {index: member.step for index, member in self._members.items()}
        steps |= {index: each.step for index, each in found.items()}
        ordered = [found[index].outputs for index in sorted(found)]
        outputs = [mean(each) for each in zip(*ordered, strict=True)]
        return Combined(outputs, version_of([steps[index] for index in sorted(steps)]), len(found))
