"""Sends queries to all models of an ensemble, and combines the predictions that arrive within the timeout.

Runs in one event loop. Each model has one member or several, its replicas, of which one is sent a batch. After a member
has missed a timeout, queries do not wait for it until it has answered all that it was sent. One that is silent while
others answer is late after half of a timeout: what it was sent waits for it, but takes no room from further batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from psfleet.inference.batches import Combined, Inputs
from psfleet.inference.members import Batch, Link, Member, Route, idlest, newest_steps
from psfleet.inference.predictions import Prediction, checked, combined, unfit, version_of, without_rows
from psfleet.inference.tensors import ModelMetadata, QueryError, Status

MIN_SILENT_SECS = 3.0
"""For so long, or as long as queries wait, a member may answer nothing that it was sent."""
GRACE_SECS = 0.05
"""Time that members have at least for a batch which had to wait."""
LATE_SHARE = 0.4
"""Of the timeout: a member that has been silent for so long is not asked, if others answer."""
MIN_LOOK_SECS = 0.01
"""Least interval of looks at what a batch still waits for."""


class Ensemble:
    """The members of a service.

    Args of the constructor:
        name: Of the model.
        num_models: How many the service has; member i has model i modulo their number.
        timeout_secs: From a query's arrival to its answer, with the predictions that are there.
        replicas: Members of each model.

    Attributes:
        num_models: As above.
        replicas: As above.
        num_members: Of all models.
        metadata: Inputs and outputs; None: no member has joined yet.
        route: Of queries; None: each member gets them by its link.
    """

    def __init__(self, name: str, num_models: int, timeout_secs: float, replicas: int = 1) -> None:
        self.num_models = num_models
        self.replicas = replicas
        self.num_members = num_models * replicas
        self.metadata: ModelMetadata | None = None
        self.route: Route | None = None
        self._name = name
        self._timeout_secs = timeout_secs
        self._silent_secs = max(timeout_secs, MIN_SILENT_SECS)
        self._members: dict[int, Member] = {}
        self._batches: dict[int, Batch] = {}
        self._last = 0

    @property
    def num_ready(self) -> int:
        """How many members would be asked now."""
        return len(self._ready())

    @property
    def version(self) -> str:
        """The steps of the models' weights; see `version_of`."""
        return version_of(list(newest_steps(self._members, self.num_models).values()))

    def join(self, index: int, link: Link, step: int, metadata: ModelMetadata) -> str:
        """Adds a member, in place of the one that had its index.

        Returns:
            Why it cannot be added; empty: it was.
        """
        problem = unfit(metadata, self.metadata, self.num_models)
        if problem:
            return problem
        self.metadata = metadata
        self.leave(index)
        self._members[index] = Member(index, link, step)
        return ""

    def leave(self, index: int) -> None:
        """Removes a member; no batch waits for it any more."""
        if self._members.pop(index, None) is not None:
            self._give_up(index)

    def probe(self, now: float) -> None:
        """Sends a batch without rows to each member that has answered all before; one that is silent is late.

        Args:
            now: On the event loop's clock.
        """
        for index, member in self._members.items():
            if member.outstanding and not member.is_late and now - member.waited_since > self._silent_secs:
                member.set_late(f"has given no sign of life for {self._silent_secs:g} s")
                self._give_up(index)
            if self.metadata is not None and not member.outstanding:
                self._send(member, self._next(), [without_rows(each) for each in self.metadata.inputs], now)

    async def ask(self, inputs: Inputs, arrived: float, release: Callable[[], object] = lambda: None) -> Combined:
        """The mean of the predictions of all models.

        Args:
            inputs: In the model's order, `[rows, ...]`.
            arrived: When the query arrived, on the event loop's clock.
            release: Called when this waits for late members only: the others have room for another batch.

        Raises:
            QueryError: No member is ready or answers in time, or all have failed.
        """
        if not (ready := self._ready()):
            raise QueryError(Status.UNAVAILABLE, f"no member of {self._name} is ready")
        loop = asyncio.get_running_loop()
        until = max(arrived + self._timeout_secs, loop.time() + GRACE_SECS)
        batch = Batch(self._next(), inputs, loop.create_future(), until, release)
        self._batches[batch.number] = batch
        end = loop.call_at(until, self._expire, batch)
        self._look_later(batch)
        try:
            of_models = [{each for each in ready if self._model(each) == model} for model in {*map(self._model, ready)}]
            self._ask(batch, [idlest(members, self._batches.values()) for members in of_models])
            await batch.done
        finally:
            end.cancel()
            if batch.look is not None:
                batch.look.cancel()
            del self._batches[batch.number]
        if not batch.predictions:
            text = f"no member of {self._name} has answered within {self._timeout_secs:g} s"
            raise QueryError(Status.UNAVAILABLE, text)
        return combined(batch.predictions, newest_steps(self._members, self.num_models))

    def reply(self, index: int, link: Link, number: int, prediction: Prediction, now: float) -> None:
        """Takes a reply; that of a member which has been replaced is ignored."""
        member = self._members.get(index)
        if member is None or member.link is not link:
            return
        member.step, member.waited_since = prediction.step, now
        member.outstanding.discard(number)
        # In one graph `take` has the answers to batches, and a link answers probes while they are computed.
        if self.route is None:
            member.answered = number, now
        member.set_present()
        self.take(index, number, prediction)

    def take(self, index: int, number: int, prediction: Prediction) -> None:
        """Takes a prediction, the first one that is made of a batch by a member of its model."""
        batch = self._batches.get(number)
        if batch is not None and index in batch.waits_for:
            model = self._model(index)
            batch.predictions[model] = checked(prediction, batch.rows)
            batch.wait_no_longer({each for each in batch.waits_for if self._model(each) == model})
            self._members[index].answered = number, asyncio.get_running_loop().time()
            self._members[index].set_present()
            if self._waits_for_late(batch):
                batch.wait_no_longer(set(batch.waits_for))

    def is_late(self, index: int) -> bool:
        """Whether a member is not asked, because it has not answered."""
        return index not in self._members or self._members[index].is_late

    def miss(self, index: int) -> None:
        """A member is known not to answer: nothing waits for it."""
        if index in self._members:
            self._members[index].is_late = True
            self._give_up(index)

    def _model(self, index: int) -> int:
        return index % self.num_models

    def _ready(self) -> set[int]:
        return {
            index
            for index, member in self._members.items()
            if not member.is_late and (self.route is None or self.route.has(index))
        }

    def _ask(self, batch: Batch, members: Collection[int]) -> None:
        now = asyncio.get_running_loop().time()
        batch.wait_for(members, now)
        if self.route is not None:
            self.route.send(batch.number, batch.inputs, sorted(members))
            return
        for index in sorted(members):
            self._send(self._members[index], batch.number, batch.inputs, now)

    def _ask_another(self, batch: Batch, model: int) -> bool:
        """Sends a batch to a member of a model that was not sent it; whether there is one."""
        if others := {index for index in self._ready() - batch.asked.keys() if self._model(index) == model}:
            self._ask(batch, [idlest(others, self._batches.values())])
        return bool(others)

    def _look_later(self, batch: Batch) -> None:
        """Looks at a batch once half of the time that it has left is over."""
        loop = asyncio.get_running_loop()
        batch.look = loop.call_later(max((batch.until - loop.time()) / 2, MIN_LOOK_SECS), self._look, batch)

    def _look(self, batch: Batch) -> None:
        """Has other members of a model asked if one has not answered, and finds out which members are late."""
        now, waited_for = asyncio.get_running_loop().time(), sorted(batch.waits_for)
        asked = {model for model in {*map(self._model, waited_for)} if self._ask_another(batch, model)}
        for index in waited_for:
            is_replaced = self._model(index) in asked
            silent_secs = now - self._members[index].silent_since(batch, is_replaced)
            if silent_secs < LATE_SHARE * self._timeout_secs or not (is_replaced or batch.has_answer):
                continue
            self._members[index].set_late(f"has not answered for {silent_secs:.2g} s, others are asked")
            for each in list(self._batches.values()):
                if is_replaced and index in each.waits_for and each is not batch:
                    self._ask_another(each, self._model(index))
        for each in filter(self._waits_for_late, list(self._batches.values())):
            each.release()
        self._look_later(batch)

    def _waits_for_late(self, batch: Batch) -> bool:
        """Whether a batch has an answer, and all members that could add a prediction are late."""
        return batch.has_answer and all(map(self.is_late, batch.waits_for))

    def _expire(self, batch: Batch) -> None:
        """Answers without the members that have not replied; they are late for all other batches, too."""
        members = set(batch.waits_for)
        batch.wait_no_longer(members)
        for index in sorted(members):
            self._members[index].set_late(f"has not answered within {self._timeout_secs:g} s")
            self._give_up(index, is_lost=False)

    def _give_up(self, index: int, is_lost: bool = True) -> None:
        """No batch waits for a member any more, but one without an answer for one that is late but not lost.

        Such a batch would fail, and the member may answer yet. Another one of its model is asked, if there is one.
        """
        for batch in list(self._batches.values()):
            if index in batch.waits_for:
                self._ask_another(batch, self._model(index))
                if is_lost or batch.has_answer:
                    batch.wait_no_longer({index})

    def _send(self, member: Member, number: int, inputs: Inputs, now: float) -> None:
        if not member.outstanding:
            member.waited_since = now
        member.outstanding.add(number)
        member.link.send(number, inputs)

    def _next(self) -> int:
        self._last += 1
        return self._last
