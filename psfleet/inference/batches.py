"""Collects concurrent queries into batches, and splits their answers again; runs in one event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from psfleet.inference.tensors import QueryError, Status

MAX_IN_FLIGHT = 2
"""Batches that a member has at a time: one that it computes, and the next. Further queries make larger batches."""

Inputs = Sequence[np.ndarray]
Shapes = tuple[tuple[int, ...], ...]
"""Shape of a row of each input: rows of other shapes do not fit into one tensor."""


@dataclass(frozen=True)
class Combined:
    """The answer to a batch, or to one query of it.

    Attributes:
        outputs: In the model's order, `[rows, ...]`.
        version: See `Answer`.
        num_models: How many models it is made of.
    """

    outputs: Sequence[np.ndarray]
    version: str
    num_models: int


@dataclass(frozen=True)
class _Waiting:
    inputs: Inputs
    arrived: float
    answer: asyncio.Future[Combined]

    @property
    def rows(self) -> int:
        return len(self.inputs[0])


@dataclass
class _Group:
    """Queries of one shape that wait; is_due: for no longer than until a batch may be sent."""

    queries: list[_Waiting] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    is_due: bool = False


class Batcher:
    """Sends queries in batches.

    Args of the constructor:
        ask: Computes the answer to a batch; gets its inputs, when its first query arrived, and a function to call when
            another batch can be computed before this has ended.
        max_rows: Of a batch; a query with more rows is a batch by itself.
        linger_secs: How long a query waits for others at most, unless too many batches are in flight.
        clock: Monotonic time in seconds.
        max_wait_secs: A query that has waited longer, because of batches in flight, is refused.
        replicas: Members that take batches in turn.
    """

    def __init__(
        self,
        ask: Callable[[Inputs, float, Callable[[], object]], Awaitable[Combined]],
        max_rows: int,
        linger_secs: float,
        clock: Callable[[], float] = time.monotonic,
        max_wait_secs: float = math.inf,
        replicas: int = 1,
    ) -> None:
        self._ask = ask
        self._max_rows = max_rows
        self._linger_secs = linger_secs
        self._clock = clock
        self._max_wait_secs = max_wait_secs
        self._max_in_flight = MAX_IN_FLIGHT * replicas
        self._groups: dict[Shapes, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def answer(self, inputs: Inputs) -> Combined:
        """The answer to a query.

        Raises:
            QueryError: It has waited too long, or what `ask` raises for its batch.
        """
        waiting = _Waiting(inputs, self._clock(), asyncio.get_running_loop().create_future())
        shapes = tuple(each.shape[1:] for each in inputs)
        group = self._groups.setdefault(shapes, _Group())
        group.queries.append(waiting)
        # One that is due is sent when a batch in flight has ended; it may be long, and is not counted again.
        if not group.is_due and sum(each.rows for each in group.queries) >= self._max_rows:
            self._make_due(shapes)
        elif not group.is_due and group.timer is None:
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(self._linger_secs, self._make_due, shapes)
        return await waiting.answer

    def _make_due(self, shapes: Shapes) -> None:
        group = self._groups[shapes]
        if group.timer is not None:
            group.timer.cancel()
        group.timer, group.is_due = None, True
        self._send_due()

    def _send_due(self) -> None:
        """Sends the batches that need not wait, those whose first query waits longest first."""
        while len(self._in_flight) < self._max_in_flight:
            due = [(group.queries[0].arrived, shapes) for shapes, group in self._groups.items() if group.is_due]
            if not due:
                return
            shapes = min(due)[1]
            batch = self._taken(self._groups[shapes].queries)
            if not self._groups[shapes].queries:
                del self._groups[shapes]
            if batch:
                task = asyncio.get_running_loop().create_task(self._run(batch))
                self._tasks.add(task)
                self._in_flight.add(task)

    def _taken(self, queries: list[_Waiting]) -> list[_Waiting]:
        """Takes the first queries of a list, as many as fit into a batch; drops those cancelled or too old."""
        batch: list[_Waiting] = []
        rows, now = 0, self._clock()
        while queries and (not batch or rows + queries[0].rows <= self._max_rows):
            query = queries.pop(0)
            if query.answer.cancelled():
                continue
            if (waited_secs := now - query.arrived) > self._max_wait_secs:
                query.answer.set_exception(_overload(waited_secs))
                continue
            batch.append(query)
            rows += query.rows
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in a task of `_send_due`"

        def release() -> None:
            self._in_flight.discard(task)
            self._send_due()

        try:
            await self._compute(batch, batch[0].arrived, release)
        finally:
            self._tasks.discard(task)
            release()

    async def _compute(self, batch: list[_Waiting], since: float, release: Callable[[], object]) -> None:
        try:
            inputs = [np.concatenate(each) for each in zip(*(query.inputs for query in batch), strict=True)]
            _split(batch, await self._ask(inputs, since, release))
        except Exception as error:
            if isinstance(error, QueryError) and error.status is Status.FAILED and len(batch) > 1:
                # The model refuses one of the queries: the others have answers.
                for query in batch:
                    await self._compute([query], self._clock(), release)
                return
            for query in batch:
                if not query.answer.done():
                    query.answer.set_exception(error)


def _overload(waited_secs: float) -> QueryError:
    return QueryError(
        Status.UNAVAILABLE, f"the query has waited {waited_secs:.2f} s: more queries arrive than members answer"
    )


def _split(batch: list[_Waiting], found: Combined) -> None:
    at = 0
    for query in batch:
        rows = [each[at : at + query.rows] for each in found.outputs]
        at += query.rows
        if not query.answer.done():
            query.answer.set_result(Combined(rows, found.version, found.num_models))
