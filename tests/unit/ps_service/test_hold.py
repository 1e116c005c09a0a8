"""Where a shard is held, and how a stop ends a run that is."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import sample_job

from ps_service.hold import Hold
from ps_service.shard import Shard


class Graph:
    """The final step that workers read."""

    def __init__(self) -> None:
        self.final_step, self.is_in_time = 100, True

    def set_final_step(self, step: int) -> bool:
        self.final_step = step if self.is_in_time else self.final_step
        return self.is_in_time

    def raise_final_step(self, step: int) -> bool:
        assert step > self.final_step
        self.final_step = step
        return True


@pytest.fixture
def graph() -> Graph:
    return Graph()


@pytest.fixture
def shard(graph: Graph) -> Any:
    """A shard at step 40 of 100."""
    made: Any = Shard.__new__(Shard)
    held: Any = graph
    made._graph, made.plan, made._lock = graph, SimpleNamespace(job=sample_job()), threading.Lock()
    made.step, made.final_step, made._scheduled, made.hold = 40, 100, set(), Hold(held, None)
    made.writer = SimpleNamespace(has_ended=lambda step: True)
    return made


def test_workers_leave_at_the_hold_and_train_on_after_it(shard: Any, graph: Graph) -> None:
    assert shard.schedule_hold(41, (1, 1))
    assert (graph.final_step, shard.last_step, shard._is_due(41)) == (41, 41, True)
    shard.step = 41
    assert not shard.is_complete, "the run has not ended"
    assert shard.schedule_hold(50, (1, 2))
    assert (graph.final_step, shard.last_step) == (50, 50)
    assert shard.schedule_hold(None, (1, 3))
    assert (graph.final_step, shard.last_step) == (100, 100)


def test_a_hold_is_refused_if_the_update_after_it_can_have_begun(shard: Any, graph: Graph) -> None:
    assert not shard.schedule_hold(40, (1, 1))
    graph.is_in_time = False
    assert not shard.schedule_hold(41, (1, 2))
    assert (graph.final_step, shard.hold.at) == (100, None)


def test_a_late_request_is_refused(shard: Any) -> None:
    """Of a chief that was replaced, or one whose deadline has passed."""
    assert shard.schedule_hold(60, (2, 1))
    for order in ((1, 9), (2, 1), (2, 0)):
        assert not shard.schedule_hold(None, order)
    assert shard.hold.at == 60


def test_a_hold_beyond_the_final_step_changes_nothing(shard: Any, graph: Graph) -> None:
    assert shard.schedule_hold(1000, (1, 1))
    assert (graph.final_step, shard.last_step) == (100, 100)


@pytest.mark.parametrize("step", [41, 45], ids=["at the hold", "before it"])
def test_a_stop_ends_a_held_run_at_its_hold(shard: Any, step: int) -> None:
    """The chief asks for the next step, which no worker makes."""
    assert shard.schedule_hold(45, (1, 1))
    shard.step = step
    assert shard.schedule_checkpoint(46, stop=True)
    assert shard.final_step == 45
    shard.step = 45
    assert shard.is_complete


def test_a_stop_before_the_hold_is_made_where_it_is_asked_for(shard: Any, graph: Graph) -> None:
    assert shard.schedule_hold(60, (1, 1))
    assert shard.schedule_checkpoint(50, stop=True)
    assert (shard.final_step, shard.last_step, graph.final_step) == (50, 50, 50)
