"""Replicas of a model: which one is asked, and who answers in place of one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from support.one_input_model import METADATA
from support.virtual_loop import run_virtually

from psfleet.inference.batches import Batcher, Combined, Inputs
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.predictions import Prediction
from psfleet.inference.tensors import QueryError

X = [np.ones([3, 2], np.float32)]
LONG_SECS = 60.0


class HeldLink:
    """Records batches, and answers them when a test releases them."""

    def __init__(self, ensemble: Ensemble, index: int, value: float, step: int = 1) -> None:
        self.ensemble, self.index, self.value, self.step = ensemble, index, value, step
        self.numbers: list[int] = []
        problem = ensemble.join(index, self, step, METADATA)
        assert not problem, problem

    def send(self, number: int, inputs: Inputs) -> None:
        self.numbers.append(number)

    def answer(self) -> None:
        """Answers the oldest batch."""
        outputs = [np.full([3], self.value, np.float32)]
        self.ensemble.reply(self.index, self, self.numbers.pop(0), Prediction(self.step, outputs), 0.0)


def in_loop(use: Callable[[Callable[[], asyncio.Task[Combined]]], Awaitable[Any]], ensemble: Ensemble) -> Any:
    """Has `use` run with a function that asks the ensemble."""

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        return await use(lambda: loop.create_task(ensemble.ask(X, loop.time())))

    return run_virtually(run())


async def begun() -> None:
    """Has tasks that were made run until they wait."""
    await asyncio.sleep(0)


async def sent(link: HeldLink) -> None:
    """Waits until a link has a batch."""
    async with asyncio.timeout(LONG_SECS):
        while not link.numbers:
            await asyncio.sleep(0.01)


def test_batches_are_sent_to_the_replica_that_has_the_fewest() -> None:
    ensemble = Ensemble("net", 1, LONG_SECS, replicas=2)
    first, second = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        tasks = [ask() for _ in range(3)]
        await begun()
        assert (len(first.numbers), len(second.numbers)) == (2, 1)
        second.answer()
        tasks.append(ask())
        await begun()
        assert (len(first.numbers), len(second.numbers)) == (2, 1)
        first.answer()
        first.answer()
        second.answer()
        assert [(await task).outputs[0][0] for task in tasks] == [0, 1, 0, 1]

    in_loop(use, ensemble)


def test_an_answer_has_one_prediction_of_each_model() -> None:
    ensemble = Ensemble("net", 2, LONG_SECS, replicas=2)
    links = [HeldLink(ensemble, index, float(10 * index), step=index) for index in range(4)]

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        one, other = ask(), ask()
        await begun()
        assert [len(link.numbers) for link in links] == [1, 1, 1, 1]
        for link in links:
            link.answer()
        assert [((await task).outputs[0][0], (await task).version) for task in (one, other)] == [
            (5, "0-1"),
            (25, "2-3"),
        ]
        assert (await one).num_models == 2
        assert ensemble.version == "2-3"

    in_loop(use, ensemble)


def test_another_replica_answers_after_half_of_the_time_and_the_late_one_is_not_asked() -> None:
    ensemble = Ensemble("net", 1, 1.0, replicas=2)
    silent, other = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        task = ask()
        await sent(other)
        assert not task.done()
        other.answer()
        assert (await task).outputs[0][0] == 1
        assert (ensemble.num_ready, ensemble.is_late(0)) == (1, True)
        again = ask()
        await begun()
        assert (len(silent.numbers), len(other.numbers)) == (1, 1)
        other.answer()
        await again
        silent.answer()
        assert ensemble.num_ready == 2

    in_loop(use, ensemble)


@pytest.mark.parametrize("waited_secs", [0.6, 0.9, 3.0])
def test_another_replica_answers_a_query_that_has_waited_for_most_of_the_time(waited_secs: float) -> None:
    ensemble = Ensemble("net", 1, 1.0, replicas=2)
    silent, other = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(ensemble.ask(X, loop.time() - waited_secs))
        await sent(other)
        other.answer()
        assert (await task).outputs[0][0] == 1
        assert (len(silent.numbers), ensemble.is_late(0)) == (1, False)

    run_virtually(run())


def test_a_third_replica_answers_when_two_do_not() -> None:
    ensemble = Ensemble("net", 1, 1.0, replicas=3)
    links = [HeldLink(ensemble, index, float(index)) for index in range(3)]

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        task = ask()
        await sent(links[1])
        assert not links[2].numbers
        await sent(links[2])
        links[2].answer()
        assert (await task).outputs[0][0] == 2

    in_loop(use, ensemble)


def test_all_batches_of_a_late_replica_are_sent_to_another_and_each_once() -> None:
    ensemble = Ensemble("net", 1, 1.0, replicas=2)
    silent, other = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        busy = [ask(), ask()]
        await begun()
        other.answer()
        await busy[1]
        # Half of the time of these is over later than that of the first.
        await asyncio.sleep(0.1)
        late = [ask(), ask()]
        await begun()
        assert (len(silent.numbers), len(other.numbers)) == (2, 1)
        async with asyncio.timeout(LONG_SECS):
            while len(other.numbers) == 1:
                await asyncio.sleep(0.01)
        assert len(other.numbers) == 3
        for _ in range(3):
            other.answer()
        assert [(await task).outputs[0][0] for task in (busy[0], *late)] == [1, 1, 1]

    in_loop(use, ensemble)


def test_the_late_replica_still_counts_if_it_answers_first() -> None:
    ensemble = Ensemble("net", 1, 1.0, replicas=2)
    slow, other = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        task = ask()
        await sent(other)
        slow.answer()
        assert (await task).outputs[0][0] == 0
        other.answer()
        assert ensemble.num_ready == 2

    in_loop(use, ensemble)


@pytest.mark.parametrize("how", ["leave", "miss"])
def test_the_batches_of_a_lost_replica_are_sent_to_another_at_once(how: str) -> None:
    ensemble = Ensemble("net", 1, LONG_SECS, replicas=2)
    lost, other = (HeldLink(ensemble, index, float(index)) for index in range(2))

    async def use(ask: Callable[[], asyncio.Task[Combined]]) -> None:
        task = ask()
        await begun()
        assert (len(lost.numbers), len(other.numbers)) == (1, 0)
        getattr(ensemble, how)(0)
        other.answer()
        assert (await task).outputs[0][0] == 1
        last = ask()
        await begun()
        ensemble.miss(1)
        with pytest.raises(QueryError, match="no member of net has answered"):
            await last

    in_loop(use, ensemble)


def test_each_replica_has_two_batches_at_a_time() -> None:
    asked: list[int] = []

    async def run() -> None:
        release = asyncio.Event()

        async def ask(inputs: Inputs, since: float, _: object) -> Combined:
            asked.append(len(inputs[0]))
            await release.wait()
            return Combined(list(inputs), "1", 1)

        batcher = Batcher(ask, 1, 0.0, replicas=3)
        row = [np.ones([1, 2], np.float32)]
        tasks = [asyncio.create_task(batcher.answer(row)) for _ in range(8)]
        async with asyncio.timeout(LONG_SECS):
            while len(asked) < 6:
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(asked) == 6
        release.set()
        await asyncio.gather(*tasks)

    run_virtually(run())
    assert asked == [1] * 8
