"""Batches of concurrent queries: what is computed together, and that each query gets its own rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from psfleet.inference.batches import MAX_IN_FLIGHT, Batcher, Combined, Inputs
from psfleet.inference.tensors import QueryError, Status


class Computer:
    """Doubles the first input; keeps the rows of each batch, and fails for a batch with -1."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.in_flight = self.most_in_flight = 0

    async def ask(self, inputs: Inputs, arrived: float, release: object) -> Combined:
        self.rows.append(len(inputs[0]))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if -1 in inputs[0]:
            raise QueryError(Status.FAILED, "the model fails")
        return Combined([2 * inputs[0]], "1", 1)


def answered(computer: Computer, queries: list[np.ndarray], max_rows: int, linger_secs: float = 0.005) -> list[object]:
    """The outputs of queries that are asked at once; an error in place of one that fails."""

    async def ask() -> list[object]:
        batcher = Batcher(computer.ask, max_rows, linger_secs, asyncio.get_running_loop().time)
        found = await asyncio.gather(*(batcher.answer([each]) for each in queries), return_exceptions=True)
        return [each.outputs[0] if isinstance(each, Combined) else each for each in found]

    return asyncio.run(ask())


def test_concurrent_queries_are_one_batch_and_each_gets_its_own_rows() -> None:
    computer = Computer()
    queries = [np.full([1 + number % 3, 2], number) for number in range(10)]
    found = answered(computer, queries, 64)
    assert computer.rows == [19]
    for query, output in zip(queries, found, strict=True):
        np.testing.assert_array_equal(output, 2 * query)


def test_a_batch_has_at_most_the_given_rows_and_a_larger_query_is_one_by_itself() -> None:
    computer = Computer()
    queries = [np.full([rows, 1], rows) for rows in (2, 2, 2, 9, 3, 1)]
    found = answered(computer, queries, 4)
    assert sorted(computer.rows) == [2, 4, 4, 9]
    for query, output in zip(queries, found, strict=True):
        np.testing.assert_array_equal(output, 2 * query)


def test_few_batches_are_computed_at_a_time_and_others_wait() -> None:
    computer = Computer()
    queries = [np.full([2, 1], number) for number in range(20)]
    found = answered(computer, queries, 2)
    assert computer.most_in_flight == MAX_IN_FLIGHT
    assert len(found) == len(computer.rows) == 20


def test_a_batch_that_gives_its_place_away_makes_room_for_one_other() -> None:
    async def run() -> list[int]:
        rows, ends = [], asyncio.Event()

        async def ask(inputs: Inputs, arrived: float, release: Callable[[], object]) -> Combined:
            rows.append(len(inputs[0]))
            if len(rows) == 1:
                for _ in range(2):
                    asyncio.get_running_loop().call_soon(release)
            await ends.wait()
            return Combined(inputs, "1", 1)

        batcher = Batcher(ask, 1, 0.0, asyncio.get_running_loop().time)
        queries = [asyncio.ensure_future(batcher.answer([np.ones([1, 1])])) for _ in range(MAX_IN_FLIGHT + 3)]
        for _ in range(20):
            await asyncio.sleep(0)
        begun = len(rows)
        ends.set()
        await asyncio.gather(*queries)
        return [begun, len(rows)]

    assert asyncio.run(run()) == [MAX_IN_FLIGHT + 1, MAX_IN_FLIGHT + 3]


def test_rows_of_other_shapes_are_other_batches() -> None:
    computer = Computer()
    found = answered(computer, [np.ones([2, 3]), np.ones([2, 4]), np.ones([1, 3])], 64)
    assert sorted(computer.rows) == [2, 3]
    assert [np.shape(each) for each in found] == [(2, 3), (2, 4), (1, 3)]


def test_a_query_on_which_the_model_fails_costs_no_other_its_answer() -> None:
    computer = Computer()
    found = answered(computer, [np.array([[1]]), np.array([[-1]]), np.array([[3]])], 64)
    assert isinstance(found[1], QueryError)
    np.testing.assert_array_equal(found[0], [[2]])
    np.testing.assert_array_equal(found[2], [[6]])


def test_a_query_of_a_client_that_has_gone_is_not_computed() -> None:
    computer = Computer()

    async def ask() -> Combined:
        batcher = Batcher(computer.ask, 64, 0.005, asyncio.get_running_loop().time)
        gone = asyncio.ensure_future(batcher.answer([np.ones([5, 1])]))
        await asyncio.sleep(0)
        gone.cancel()
        found = await batcher.answer([np.ones([2, 1])])
        with pytest.raises(asyncio.CancelledError):
            await gone
        return found

    assert len(asyncio.run(ask()).outputs[0]) == 2
    assert computer.rows == [2]


def test_a_query_that_has_waited_too_long_is_refused_and_not_computed() -> None:
    computer, secs = Computer(), [0.0]

    async def ask() -> list[Combined | BaseException]:
        released = asyncio.Event()

        async def ask_later(inputs: Inputs, arrived: float, release: object) -> Combined:
            await released.wait()
            return await computer.ask(inputs, arrived, release)

        batcher = Batcher(ask_later, 1, 0.0, lambda: secs[0], max_wait_secs=2.0)
        queries = []
        for value in range(MAX_IN_FLIGHT + 2):
            secs[0] = 0.5 * value
            queries.append(asyncio.ensure_future(batcher.answer([np.full([1, 1], value)])))
            await asyncio.sleep(0)
        secs[0] = 0.5 * MAX_IN_FLIGHT + 2.25
        released.set()
        return await asyncio.gather(*queries, return_exceptions=True)

    *done, refused, last = asyncio.run(ask())
    assert isinstance(refused, QueryError)
    assert (refused.status, "has waited 2.25 s" in str(refused)) == (Status.UNAVAILABLE, True)
    for value, found in zip((*range(MAX_IN_FLIGHT), MAX_IN_FLIGHT + 1), (*done, last), strict=True):
        assert isinstance(found, Combined)
        assert found.outputs[0] == 2 * value
    assert len(computer.rows) == MAX_IN_FLIGHT + 1
