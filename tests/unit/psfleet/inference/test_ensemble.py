"""An ensemble: which members get a query, how long it waits for them, and how predictions are combined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from support.one_input_model import METADATA
from support.virtual_loop import run_virtually

from psfleet.inference.batches import MAX_IN_FLIGHT, Batcher, Combined, Inputs
from psfleet.inference.ensemble import GRACE_SECS, MIN_SILENT_SECS, Ensemble
from psfleet.inference.predictions import Prediction, mean, version_of
from psfleet.inference.tensors import QueryError, Status, TensorMetadata

X = [np.ones([3, 2], np.float32)]


class FakeLink:
    """Answers at once, with a value for each row; or not at all."""

    def __init__(self, ensemble: Ensemble, index: int, value: float | None, step: int = 1, error: str = "") -> None:
        self.ensemble, self.index, self.value, self.step, self.error = ensemble, index, value, step, error
        self.numbers: list[int] = []
        problem = ensemble.join(index, self, step, METADATA)
        assert not problem, problem

    def send(self, number: int, inputs: Inputs) -> None:
        self.numbers.append(number)
        if self.value is not None:
            self.answer(number, len(inputs[0]))

    def answer(self, number: int, rows: int) -> None:
        outputs = [] if self.error else [np.full([rows], self.value, np.float32)]
        self.ensemble.reply(self.index, self, number, Prediction(self.step, outputs, self.error), 0.0)


def asked(ensemble: Ensemble, inputs: Sequence[np.ndarray] = X) -> tuple[list[float], str, int]:
    """The first output, version, and number of members of an answer."""

    async def ask() -> tuple[list[float], str, int]:
        found = await ensemble.ask(inputs, asyncio.get_running_loop().time())
        return found.outputs[0].tolist(), found.version, found.num_models

    return asyncio.run(ask())


def test_an_answer_is_the_mean_of_all_members_with_their_steps() -> None:
    ensemble = Ensemble("net", 2, 1.0)
    FakeLink(ensemble, 0, 2.0, step=5)
    FakeLink(ensemble, 1, 4.0, step=7)
    assert asked(ensemble) == ([3.0] * 3, "5-7", 2)


def test_a_member_that_misses_the_timeout_is_not_asked_until_it_has_answered_everything() -> None:
    ensemble = Ensemble("net", 2, 0.01)
    FakeLink(ensemble, 0, 2.0)
    silent = FakeLink(ensemble, 1, None)
    assert asked(ensemble) == ([2.0] * 3, "1", 1)
    assert (ensemble.num_ready, ensemble.is_late(1)) == (1, True)
    asked(ensemble)
    ensemble.probe(0.0)
    assert len(silent.numbers) == 1, "nothing is sent before it answers"
    silent.value = 4.0
    silent.answer(silent.numbers[0], 3)
    assert ensemble.num_ready == 2
    assert asked(ensemble) == ([3.0] * 3, "1", 2)


def test_a_batch_waits_no_longer_for_a_member_that_another_batch_found_late() -> None:
    ensemble = Ensemble("net", 2, 0.05)
    FakeLink(ensemble, 0, 2.0)
    FakeLink(ensemble, 1, None)

    async def ask_twice() -> float:
        loop = asyncio.get_running_loop()
        first = loop.create_task(ensemble.ask(X, loop.time()))
        # As if it had arrived later: its own deadline is far away.
        second = loop.create_task(ensemble.ask(X, loop.time() + 60.0))
        began = loop.time()
        await asyncio.gather(first, second)
        return loop.time() - began

    assert asyncio.run(ask_twice()) < 30.0


def test_queries_that_have_waited_behind_a_lost_member_have_time_for_the_others() -> None:
    timeout_secs, predict_secs = 1.0, 4 * GRACE_SECS
    ensemble = Ensemble("net", 2, timeout_secs)
    slow, lost = (FakeLink(ensemble, index, None) for index in (0, 1))
    slow.value = 2.0

    async def ask() -> list[Combined | BaseException]:
        loop = asyncio.get_running_loop()
        slow.send = lambda number, inputs: loop.call_later(predict_secs, slow.answer, number, 3)  # type: ignore[method-assign]
        batcher = Batcher(ensemble.ask, 3, 0.0, loop.time)
        queries = [batcher.answer(X) for _ in range(MAX_IN_FLIGHT + 4)]
        return await asyncio.gather(*queries, return_exceptions=True)

    found = run_virtually(ask())
    assert [each.num_models if isinstance(each, Combined) else each for each in found] == [1] * len(found)
    assert len(lost.numbers) == MAX_IN_FLIGHT, "it is late after half of the time"


@pytest.mark.parametrize("is_in_graph", [False, True])
def test_a_member_that_answers_after_half_of_the_time_counts_and_is_asked_again(is_in_graph: bool) -> None:
    ensemble, sent = Ensemble("net", 2, 1.0), list[int]()
    links = [FakeLink(ensemble, index, None) for index in (0, 1)]
    if is_in_graph:
        ensemble.route = SimpleNamespace(has=lambda index: True, send=lambda number, *_: sent.append(number))

    async def ask() -> Combined:
        loop = asyncio.get_running_loop()
        released = asyncio.Event()
        answer = loop.create_task(ensemble.ask(X, loop.time(), released.set))
        await asyncio.sleep(0)
        for link in links:
            prediction = Prediction(1, [np.ones([3], np.float32)])
            if is_in_graph:
                ensemble.take(link.index, sent[0], prediction)
            else:
                ensemble.reply(link.index, link, link.numbers[0], prediction, loop.time())
            if link is links[0]:
                await released.wait()
                assert (ensemble.num_ready, answer.done()) == (1, False)
        assert ensemble.num_ready == 2
        return await answer

    assert asyncio.run(ask()).num_models == 2


def test_a_batch_without_a_prediction_waits_for_members_that_another_batch_found_late() -> None:
    ensemble = Ensemble("net", 2, 0.05)
    links = [FakeLink(ensemble, index, None) for index in (0, 1)]

    async def ask_twice() -> Combined:
        loop = asyncio.get_running_loop()
        first = loop.create_task(ensemble.ask(X, loop.time()))
        second = loop.create_task(ensemble.ask(X, loop.time() + 60.0))
        with pytest.raises(QueryError, match="no member of net has answered"):
            await first
        assert ensemble.num_ready == 0
        links[1].value = 4.0
        links[1].answer(links[1].numbers[1], 3)
        return await second

    found = asyncio.run(ask_twice())
    assert (found.num_models, found.outputs[0][0]) == (1, 4.0)


@pytest.mark.parametrize("late", [False, True])
def test_without_a_prediction_a_query_has_the_status_unavailable(late: bool) -> None:
    ensemble = Ensemble("net", 1, 0.01)
    if late:
        FakeLink(ensemble, 0, None)
    for message in ["no member of net has answered within 0.01 s"] * late + ["no member of net is ready"]:
        with pytest.raises(QueryError, match=message) as caught:
            asked(ensemble)
        assert caught.value.status is Status.UNAVAILABLE


def test_a_member_that_fails_is_left_out_and_the_error_of_all_is_the_answer() -> None:
    ensemble = Ensemble("net", 2, 1.0)
    good = FakeLink(ensemble, 0, 2.0)
    FakeLink(ensemble, 1, 0.0, error="the model fails")
    assert asked(ensemble) == ([2.0] * 3, "1", 1)
    good.error = "this one, too"
    with pytest.raises(QueryError, match="this one, too") as caught:
        asked(ensemble)
    assert caught.value.status is Status.FAILED


def test_an_output_with_another_number_of_rows_is_an_error() -> None:
    ensemble = Ensemble("net", 1, 1.0)
    link = FakeLink(ensemble, 0, 2.0)
    link.answer = lambda number, rows: FakeLink.answer(link, number, rows + 1)  # type: ignore[method-assign]
    with pytest.raises(QueryError, match=r"an output of shape \(4,\) for 3 rows"):
        asked(ensemble)


def test_replies_of_a_member_that_was_replaced_are_ignored() -> None:
    ensemble = Ensemble("net", 1, 0.01)
    before = FakeLink(ensemble, 0, None)
    with pytest.raises(QueryError):
        asked(ensemble)
    FakeLink(ensemble, 0, 4.0, step=9)
    before.value = 2.0
    before.answer(before.numbers[0], 3)
    assert asked(ensemble) == ([4.0] * 3, "9", 1)


def test_a_member_that_is_silent_is_late_without_any_query() -> None:
    ensemble = Ensemble("net", 2, 1.0)
    FakeLink(ensemble, 0, 2.0)
    silent = FakeLink(ensemble, 1, None)
    for now in (10.0, 10.0 + MIN_SILENT_SECS):
        ensemble.probe(now)
        assert ensemble.num_ready == 2
    ensemble.probe(10.1 + MIN_SILENT_SECS)
    assert (ensemble.num_ready, len(silent.numbers)) == (1, 1)
    silent.value = 4.0
    silent.answer(silent.numbers[0], 0)
    assert ensemble.num_ready == 2


def test_members_with_other_outputs_or_outputs_without_a_mean_are_refused() -> None:
    ensemble = Ensemble("net", 2, 1.0)
    FakeLink(ensemble, 0, 2.0)
    other = METADATA.model_copy(update={"outputs": (TensorMetadata(name="z", datatype="FP32", shape=(-1,)),)})
    assert "expected those that the service has" in ensemble.join(1, FakeLink(ensemble, 0, 1.0), 1, other)
    classes = METADATA.model_copy(update={"outputs": (TensorMetadata(name="y", datatype="INT64", shape=(-1,)),)})
    link = FakeLink(Ensemble("net", 1, 1.0), 0, 1.0)
    assert "members are averaged" in Ensemble("net", 2, 1.0).join(0, link, 1, classes)
    assert not Ensemble("net", 1, 1.0).join(0, link, 1, classes)


def test_means_and_versions() -> None:
    assert mean([np.array([1, 2], np.float32), np.array([3, np.nan], np.float32)])[0] == 2
    assert mean([np.array([1], np.float32), np.array([2], np.float32)]).dtype == np.float32
    assert version_of([3, 3]) == "3"
    assert version_of([3, 4, 3]) == "3-4-3"


def test_outputs_of_other_shapes_than_those_of_another_member_are_no_answer() -> None:
    ensemble = Ensemble("net", 2, 1.0)
    links = [FakeLink(ensemble, index, None) for index in (0, 1)]

    async def ask() -> None:
        answer = asyncio.ensure_future(ensemble.ask(X, asyncio.get_running_loop().time()))
        await asyncio.sleep(0)
        for width, link in enumerate(links, 4):
            prediction = Prediction(1, [np.ones([3, width], np.float32)])
            ensemble.reply(link.index, link, link.numbers[0], prediction, 0.0)
        await answer

    with pytest.raises(QueryError, match=r"members give outputs of shapes \[3, 4\] and \[3, 5\]") as caught:
        asyncio.run(ask())
    assert caught.value.status is Status.FAILED
