"""Members that others find late, in virtual time: only those that are silent, and only if others have an answer."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.one_input_model import METADATA
from support.virtual_loop import run_virtually

from psfleet.inference.batches import MAX_IN_FLIGHT, Batcher, Combined, Inputs
from psfleet.inference.ensemble import LATE_SHARE, Ensemble
from psfleet.inference.predictions import Prediction

X = [np.ones([3, 2], np.float32)]
TIMEOUT_SECS = 1.0


class BusyLink:
    """Answers one batch after the other, each after some seconds."""

    def __init__(self, ensemble: Ensemble, index: int, predict_secs: float, error: str = "") -> None:
        self.ensemble, self.index, self.predict_secs, self.error = ensemble, index, predict_secs, error
        self.ends = 0.0
        problem = ensemble.join(index, self, 1, METADATA)
        assert not problem, problem

    def send(self, number: int, inputs: Inputs) -> None:
        loop = asyncio.get_running_loop()
        if self.ensemble.route is not None and not len(inputs[0]):
            # In one graph a link answers probes itself, while batches are computed.
            probed = Prediction(1, [np.ones([0], np.float32)])
            loop.call_later(0.005, lambda: self.ensemble.reply(self.index, self, number, probed, loop.time()))
            return
        self.ends = max(self.ends, loop.time()) + self.predict_secs
        loop.call_at(self.ends, self.answer, number, len(inputs[0]))

    def answer(self, number: int, rows: int) -> None:
        prediction = Prediction(1, [] if self.error else [np.ones([rows], np.float32)], self.error)
        now = asyncio.get_running_loop().time()
        if self.ensemble.route is None:
            self.ensemble.reply(self.index, self, number, prediction, now)
        else:
            self.ensemble.take(self.index, number, prediction)


class GraphRoute:
    """Has the links of members take batches, as if in one graph."""

    def __init__(self, links: list[BusyLink]) -> None:
        self.links = links

    def has(self, index: int) -> bool:
        return True

    def send(self, number: int, inputs: Inputs, members: list[int]) -> None:
        for index in members:
            self.links[index].send(number, inputs)


async def asked(ensemble: Ensemble, queries: int) -> list[int]:
    """How many models answered each query, of clients without a pause: as many wait for room as are computed."""
    found: list[int] = []

    async def ask_each(batcher: Batcher, number: int) -> None:
        await asyncio.sleep(0.01 * number)
        while len(found) < queries:
            answer: Combined = await batcher.answer(X)
            found.append(answer.num_models)

    async def probe() -> None:
        while ensemble.route is not None:
            ensemble.probe(loop.time())
            await asyncio.sleep(1.0)

    loop = asyncio.get_running_loop()
    probing = loop.create_task(probe())
    batcher = Batcher(ensemble.ask, 64, 0.0, loop.time)
    await asyncio.gather(*(ask_each(batcher, number) for number in range(2 * MAX_IN_FLIGHT)))
    probing.cancel()
    return found


@pytest.mark.parametrize("is_in_graph", [False, True])
def test_a_member_that_answers_one_batch_after_the_other_is_not_late_because_the_next_one_waits(
    is_in_graph: bool,
) -> None:
    ensemble = Ensemble("net", 2, TIMEOUT_SECS)
    # Its second batch is answered after half of the timeout.
    links = [BusyLink(ensemble, index, secs) for index, secs in enumerate((0.05, 0.75 * LATE_SHARE))]
    if is_in_graph:
        ensemble.route = GraphRoute(links)  # type: ignore[assignment]
    found = run_virtually(asked(ensemble, 200))
    assert set(found) == {2}, found


@pytest.mark.parametrize("secs", [0.27, 0.3])
def test_a_query_on_which_another_member_fails_waits_for_one_that_answers_in_time(secs: float) -> None:
    ensemble = Ensemble("net", 2, TIMEOUT_SECS)
    BusyLink(ensemble, 0, 0.05, error="the model fails")
    BusyLink(ensemble, 1, secs)
    found = run_virtually(asked(ensemble, 20))
    assert set(found) == {1}, found


def test_an_error_is_no_answer_for_which_a_late_member_is_not_waited_for() -> None:
    ensemble = Ensemble("net", 2, TIMEOUT_SECS)
    failing, slow = BusyLink(ensemble, 0, 0.05), BusyLink(ensemble, 1, 0.6 * TIMEOUT_SECS)

    async def ask() -> list[Combined]:
        loop = asyncio.get_running_loop()
        first = loop.create_task(ensemble.ask(X, loop.time()))
        await asyncio.sleep(0.45)
        failing.error, failing.predict_secs, slow.predict_secs = "the model fails", 0.1, 0.05
        second = loop.create_task(ensemble.ask(X, loop.time()))
        await asyncio.sleep(0.06)
        assert ensemble.is_late(1)
        return [await first, await second]

    assert [each.num_models for each in run_virtually(ask())] == [2, 1]


def test_a_replica_that_is_sent_a_batch_in_place_of_another_has_as_long_as_that_before_it_is_late() -> None:
    ensemble = Ensemble("net", 2, TIMEOUT_SECS, replicas=2)
    for index, secs in enumerate((100.0, 0.05, 0.75 * LATE_SHARE, 0.05)):
        BusyLink(ensemble, index, secs)

    async def ask() -> Combined:
        loop = asyncio.get_running_loop()
        answer = loop.create_task(ensemble.ask(X, loop.time()))
        # Of the looks at half and three quarters of the time, the first has member 2 asked.
        await asyncio.sleep(0.76 * TIMEOUT_SECS)
        assert [ensemble.is_late(index) for index in range(4)] == [True, False, False, False]
        return await answer

    assert run_virtually(ask()).num_models == 2


def test_a_batch_that_a_member_has_passed_over_gives_up_its_place() -> None:
    ensemble = Ensemble("net", 2, TIMEOUT_SECS)
    _, other = (BusyLink(ensemble, index, 0.05) for index in range(2))

    async def ask() -> tuple[Combined, bool, Combined]:
        loop = asyncio.get_running_loop()
        released = asyncio.Event()
        other.predict_secs = 100.0
        first = loop.create_task(ensemble.ask(X, loop.time(), released.set))
        await asyncio.sleep(0.2)
        other.predict_secs, other.ends = 0.05, 0.0
        second = await ensemble.ask(X, loop.time())
        await asyncio.sleep(0.3)
        return second, released.is_set(), await first

    second, is_released, first = run_virtually(ask())
    assert (second.num_models, is_released, first.num_models) == (2, True, 1)
