"""Asks all members of an ensemble, and combines the predictions that come within the timeout; runs in one event loop.

A member that misses a timeout is not waited for until it has answered everything that it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from psfleet.inference.batches import Combined, Inputs
from psfleet.inference.tensors import DATATYPES, ModelMetadata, QueryError, Status

logger = logging.getLogger("psfleet.front")

GRACE_SECS = 0.05
"""Time that members have at least for a batch which had to wait."""


class Link(Protocol):
    """The way to a member."""

    def send(self, number: int, inputs: Inputs) -> None:
        """Sends a batch; does not block. The reply reaches `Ensemble.reply`."""


@dataclass(frozen=True)
class Prediction:
    """A member's reply to a batch.

    Attributes:
        step: Of the weights.
        outputs: In the model's order, `[rows, ...]`.
        error: Why there are none; empty: there are.
    """

    step: int
    outputs: Sequence[np.ndarray]
    error: str = ""


@dataclass
class _Member:
    """A member that has joined; outstanding: the numbers of the batches that it has not answered."""

    link: Link
    step: int
    outstanding: set[int] = field(default_factory=set)
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
    """

    def __init__(self, name: str, num_members: int, timeout_secs: float) -> None:
        self.num_members = num_members
        self.metadata: ModelMetadata | None = None
        self._name = name
        self._timeout_secs = timeout_secs
        self._members: dict[int, _Member] = {}
        self._batches: dict[int, _Batch] = {}
        self._last = 0

    @property
    def num_ready(self) -> int:
        """How many members would be asked now."""
        return sum(not member.is_late for member in self._members.values())

    @property
    def version(self) -> str:
        """The steps of the members' weights; see `version_of`."""
        return version_of([self._members[index].step for index in sorted(self._members)])

    def join(self, index: int, link: Link, step: int, metadata: ModelMetadata) -> str:
        """Adds a member, in place of the one that had its index.

        Returns:
            Why it cannot be added; empty: it was.
        """
        others = set(self._members) - {index}
        problem = self._problem(metadata, bool(others))
        if problem:
            return problem
        if not others:
            self.metadata = metadata
        self.leave(index)
        self._members[index] = _Member(link, step)
        return ""

    def leave(self, index: int) -> None:
        """Removes a member; no batch waits for it any more."""
        if self._members.pop(index, None) is not None:
            self._stop_waiting(index)

    def probe(self) -> None:
        """Sends a batch without rows to each member that has answered all before: it shows who is alive."""
        assert self.metadata is not None or not self._members, "members have metadata"
        for member in self._members.values():
            if self.metadata is not None and not member.outstanding:
                self._send(member, self._next(), [_empty(each.datatype, each.shape) for each in self.metadata.inputs])

    async def ask(self, inputs: Inputs, arrived: float) -> Combined:
        """The mean of the predictions of all members.

        Args:
            inputs: In the model's order, `[rows, ...]`.
            arrived: When the query arrived, on the event loop's clock.

        Raises:
            QueryError: No member is ready or answers in time, or all have failed.
        """
        ready = {index for index, member in self._members.items() if not member.is_late}
        if not ready:
            raise QueryError(Status.UNAVAILABLE, f"no member of {self._name} is ready")
        loop = asyncio.get_running_loop()
        number, batch = self._next(), _Batch(ready, loop.create_future(), len(inputs[0]))
        self._batches[number] = batch
        until = max(arrived + self._timeout_secs, loop.time() + GRACE_SECS)
        timer = loop.call_at(until, self._expire, number)
        try:
            for index in sorted(ready):
                self._send(self._members[index], number, inputs)
            await batch.done
        finally:
            timer.cancel()
            del self._batches[number]
        return self._combined(batch.predictions)

    def reply(self, index: int, link: Link, number: int, prediction: Prediction) -> None:
        """Takes a reply; that of a member which has been replaced is ignored."""
        member = self._members.get(index)
        if member is None or member.link is not link:
            return
        member.step = prediction.step
        member.outstanding.discard(number)
        if member.is_late and not member.outstanding:
            member.is_late = False
            logger.info("member %d answers again", index, extra={"event": "member_back", "member": index})
        batch = self._batches.get(number)
        if batch is not None and index in batch.waits_for:
            batch.predictions[index] = _checked(prediction, batch.rows)
            self._stop_waiting(index, number)

    def _expire(self, number: int) -> None:
        """Answers without the members that have not replied; they are late for all other batches, too."""
        for index in set(self._batches[number].waits_for):
            self._members[index].is_late = True
            text = "member %d has not answered within %g s"
            logger.warning(text, index, self._timeout_secs, extra={"event": "member_late", "member": index})
            self._stop_waiting(index)

    def _stop_waiting(self, index: int, number: int | None = None) -> None:
        """Has a batch, or all, not wait for a member."""
        for batch in [self._batches[number]] if number is not None else self._batches.values():
            batch.waits_for.discard(index)
            if not batch.waits_for and not batch.done.done():
                batch.done.set_result(None)

    def _send(self, member: _Member, number: int, inputs: Inputs) -> None:
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

    def _problem(self, metadata: ModelMetadata, has_others: bool) -> str:
        if has_others and self.metadata is not None and not _are_equal(metadata, self.metadata):
            return f"inputs or outputs are {metadata}, expected those of the other members: {self.metadata}"
        if self.num_members > 1:
            for each in metadata.outputs:
                if not np.issubdtype(DATATYPES[each.datatype], np.floating):
                    return (
                        f"output {each.name} is {each.datatype}, expected floating point numbers: members are averaged"
                    )
        return ""


def mean(values: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of equal shapes, in their type; a single value is returned as it is."""
    if len(values) == 1:
        return values[0]
    return np.mean(np.stack(values), axis=0, dtype=np.float64).astype(values[0].dtype)


def version_of(steps: Sequence[int]) -> str:
    """The version of members with these steps: one number if all are equal, or else one of each."""
    return "-".join(str(step) for step in (steps[:1] if len(set(steps)) == 1 else steps))


def _are_equal(one: ModelMetadata, other: ModelMetadata) -> bool:
    return one.inputs == other.inputs and one.outputs == other.outputs


def _checked(prediction: Prediction, rows: int) -> Prediction:
    wrong = [each.shape for each in prediction.outputs if not each.shape or each.shape[0] != rows]
    if wrong and not prediction.error:
        return Prediction(prediction.step, (), f"the model gives an output of shape {wrong[0]} for {rows} rows")
    return prediction


def _empty(datatype: str, shape: Sequence[int]) -> np.ndarray:
    return np.empty([0, *(max(size, 0) for size in shape[1:])], DATATYPES[datatype])
