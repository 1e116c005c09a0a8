"""A ps applies each update with the learning rate of its step, and pauses where the chief has it pause."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import sample_job
from support.graph_fleet import STEP_SECS, graph_fleet

from ps_service.hold import Hold
from ps_service.rate_reductions import RateReductions
from ps_service.shard import Shard
from ps_service.shard_plan import ShardPlan
from psfleet.polling import wait_until

SECS = 10.0
PLATEAU = {"kind": "plateau", "metric": "accuracy", "factor": 0.5}
SECTIONS: dict[str, Any] = {
    "optimizer": {"name": "sgd", "learning_rate": 1, "schedule": {**PLATEAU, "warmup_steps": 2}},
    "evaluate": {"every_steps": 10},
}


class Graph:
    """Counts updates, and records the number of reductions that each is made with."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.number = 0
        self.base_rate = SimpleNamespace(reduce=self.reduce)
        self.updates = SimpleNamespace(advance=self.advance, release_barrier=lambda: None)

    def reduce(self, number: int) -> None:
        self.number = number

    def advance(self, hold: bool) -> int:
        del hold
        self.numbers.append(self.number)
        return len(self.numbers)


def shard_at_0(*reductions: int) -> Any:
    """A shard without TensorFlow."""
    shard, graph = Shard.__new__(Shard), Graph()
    layout: Any = None
    shard.plan, shard.step, shard.final_step = ShardPlan("run", 1, 0, sample_job(), layout, None), 0, 99
    shard.hold = Hold(graph, None)
    shard._graph, shard._scheduled, shard._lock = graph, set(), threading.Lock()
    shard._reductions, shard._num_reductions = RateReductions(reductions), 0
    return shard


@contextmanager
def advancing(shard: Any, number: int) -> Iterator[threading.Thread]:
    """Makes so many updates on a thread."""
    thread = threading.Thread(target=lambda: [shard._advance() for _ in range(number)], daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        shard._reductions.close()
        thread.join(SECS)
    assert not thread.is_alive(), "a pause outlives its shard"


def test_a_restored_shard_makes_the_updates_before_and_after_a_reduction_with_their_rates() -> None:
    shard = shard_at_0(2, 5, 5)
    for _ in range(7):
        shard._advance()
    assert shard._graph.numbers == [0, 0, 1, 1, 1, 3, 3]


def test_a_shard_pauses_at_a_step_until_the_reductions_are_known() -> None:
    shard = shard_at_0()
    assert shard.schedule_reductions([], 3, (1, 1))
    with advancing(shard, 6) as thread:
        wait_until(lambda: shard.step == 3, SECS, "the step of the pause")
        assert shard.is_paused
        thread.join(0.2)
        assert shard.step == 3, "a shard passed the step at which it must pause"
        assert shard.schedule_reductions([3], None, (1, 2))
        wait_until(lambda: shard.step == 6, SECS, "the updates after the pause")
    assert not shard.is_paused
    assert shard._graph.numbers == [0, 0, 0, 1, 1, 1]


def test_a_pause_can_be_moved_ahead() -> None:
    shard = shard_at_0()
    assert shard.schedule_reductions([], 2, (1, 1))
    with advancing(shard, 5):
        wait_until(lambda: shard.step == 2, SECS, "the step of the pause")
        assert shard.schedule_reductions([], 4, (1, 2))
        wait_until(lambda: shard.step == 4, SECS, "the step of the second pause")


def test_a_pause_that_an_update_can_have_passed_is_refused_and_changes_nothing() -> None:
    shard = shard_at_0()
    for _ in range(4):
        shard._advance()
    for pause_at in (3, 4):
        assert not shard.schedule_reductions([5], pause_at, (1, 1))
    for _ in range(3):
        shard._advance()
    assert shard._graph.numbers == [0] * 7
    assert shard.schedule_reductions([], 9, (1, 1))


def test_a_shard_keeps_a_pause_that_comes_during_the_update_before_it() -> None:
    shard = shard_at_0()
    advance, begun, may_end = shard._graph.updates.advance, threading.Event(), threading.Event()

    def advance_slowly(hold: bool) -> int:
        begun.set()
        assert may_end.wait(SECS)
        return int(advance(hold))

    shard._graph.updates.advance = advance_slowly
    with advancing(shard, 3) as thread:
        assert begun.wait(SECS), "no update begins"
        assert shard.schedule_reductions([], 1, (1, 1))
        may_end.set()
        wait_until(lambda: shard.step == 1, SECS, "the step of the pause")
        thread.join(0.2)
        assert shard.step == 1, "a shard passed the step at which it must pause"
        assert shard.schedule_reductions([1], None, (1, 2))
        wait_until(lambda: shard.step == 3, SECS, "the updates after the pause")
    assert shard._graph.numbers == [0, 1, 1]


def test_a_request_that_arrives_after_a_newer_one_is_refused() -> None:
    """The chief has given up waiting for its reply, and has ended the pause."""
    shard = shard_at_0()
    assert shard.schedule_reductions([], None, (1, 2))
    assert not shard.schedule_reductions([], 3, (1, 1))
    assert shard.schedule_reductions([4], None, (2, 1)), "a chief that replaces another counts anew"
    assert not shard.schedule_reductions([], None, (1, 9))
    for _ in range(6):
        shard._advance()
    assert shard._graph.numbers == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_updates_have_the_reduced_rate_times_the_warm_up(mode: str) -> None:
    """Each gradient is 1 + the other weight / 8, and both weights are equal."""
    weight = 0.0
    with graph_fleet(update={"mode": mode}, **SECTIONS) as fleet, fleet.worker(0) as worker:
        for step, (number, rate) in enumerate([(0, 0.5), (0, 1.0), (1, 0.5), (3, 0.125)]):
            fleet.shards[0].base_rate.reduce(number)
            pushed = worker.push(1, step)
            fleet.advance()
            pushed.result(STEP_SECS)
            weight -= rate * (1 + weight / 8)
            assert fleet.weights() == pytest.approx([weight] * 2, rel=1e-6), f"step {step}"
