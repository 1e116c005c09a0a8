"""When a shard writes a checkpoint part, and how often a ps reads its counters."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from support.chief_samples import sample_job

from ps_service.hold import Hold
from ps_service.restore import Restored
from ps_service.shard import COUNTERS_SECS, Shard
from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import Job
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until

LAYOUT = Layout.plan([TensorSpec("w", (7,))], [], [], num_ps=1, bucket_bytes=4096)
SECS = 20.0
"""Far more than a part takes."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still: `now.secs`."""
    clock = SimpleNamespace(secs=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.secs)
    return clock


def plan_of(job: Job) -> ShardPlan:
    """A plan for this job, without a model."""
    layout: Any = None
    return ShardPlan("run", 1, 0, job, layout, None)


@pytest.fixture
def shard() -> Any:
    """A shard at step 4 of 9; its counters are the number of their readings."""
    made, readings = Shard.__new__(Shard), iter(range(1, 99))
    graph: Any = SimpleNamespace(counters=lambda: next(readings))
    parts: Any = SimpleNamespace(has_ended=lambda step: step == 9)
    made._graph, made.writer, made.step, made.final_step = graph, parts, 4, 9
    made._counters, made._counting = (0.0, None), threading.Lock()
    made.hold = Hold(graph, None)
    return made


def test_heartbeats_share_a_reading_of_the_counters(shard: Any, now: SimpleNamespace) -> None:
    """One for each would cost a ps a run of its session for each worker each second."""
    assert [shard.counters() for _ in range(5)] == [1] * 5
    now.secs += COUNTERS_SECS * 1.01
    assert [shard.counters() for _ in range(5)] == [2] * 5


def test_after_the_last_step_each_reading_is_exact(shard: Any, now: SimpleNamespace) -> None:
    """The report contains it: a late gradient may arrive between two readings."""
    shard.counters()
    shard.step = shard.final_step
    assert [shard.counters() for _ in range(3)] == [2, 3, 4]
    del now


@pytest.mark.parametrize(("best", "due"), [(None, [10, 20, 30, 35]), ({"metric": "accuracy"}, [10, 15, 20, 30, 35])])
def test_checkpoints_are_due_at_evaluations_if_the_best_one_is_kept(
    shard: Any, best: dict[str, str] | None, due: list[int]
) -> None:
    job = sample_job(evaluate={"every_steps": 15}, checkpoint={"every_steps": 10, "best": best})
    shard.plan, shard.final_step, shard._scheduled = plan_of(job), 35, set()
    assert [step for step in range(1, 36) if shard._is_due(step)] == due


@pytest.mark.parametrize(
    ("step", "stop", "in_time", "accepted"),
    [
        pytest.param(4, False, True, False, id="already made"),
        pytest.param(5, False, True, True, id="a checkpoint of the step in progress"),
        pytest.param(5, True, True, True, id="a stop at the step in progress"),
        pytest.param(5, True, False, False, id="the update to it has begun"),
        pytest.param(100, True, True, True, id="the last step of the job"),
    ],
)
def test_a_checkpoint_or_a_stop_is_due_at_the_step_for_which_it_was_accepted(
    shard: Any, step: int, stop: bool, in_time: bool, accepted: bool
) -> None:
    shard.plan, shard.final_step, shard._scheduled = plan_of(sample_job()), 100, set()
    shard._lock = threading.Lock()
    shard._graph.set_final_step = lambda step: in_time
    assert shard.schedule_checkpoint(step, stop) == accepted
    assert shard.final_step == (step if stop and accepted else 100)
    assert shard._is_due(5) == (accepted and step == 5)


class HeldGraph:
    """The graph of a shard of which no gradient comes until it is closed."""

    slot_names: ClassVar[list[str]] = []

    def __init__(self, *_: object) -> None:
        self.num_snapshots = 0
        self._is_closed = threading.Event()
        self.updates = SimpleNamespace(advance=self._advance)

    def _advance(self, hold: bool) -> int:
        """See `Updates`."""
        assert self._is_closed.wait(SECS)
        raise tf.errors.CancelledError(None, None, "the session was closed")

    def take_snapshot(self) -> None:
        """See `ShardGraph`."""
        self.num_snapshots += 1

    def read_snapshot(self) -> ShardContent:
        """See `ShardGraph`."""
        nothing = np.zeros(0, np.uint8)
        return ShardContent(np.zeros(LAYOUT.parameters.shard_size, np.float32), {}, {}, nothing, nothing)

    def close(self) -> None:
        """See `ShardGraph`."""
        self._is_closed.set()


@pytest.mark.parametrize(("hold_at", "steps"), [(40, [40]), (41, []), (None, [])])
def test_a_shard_that_starts_where_it_is_held_has_a_part_of_that_step(
    monkeypatch: pytest.MonkeyPatch, hold_at: int | None, steps: list[int]
) -> None:
    """No update follows, after which one would be written: a save, or a stop, would wait for it."""
    monkeypatch.setattr("ps_service.shard.ShardGraph", HeldGraph)
    plan = ShardPlan("run", 1, 0, sample_job(), LAYOUT, None, hold_at=hold_at)
    content: Any = None
    shard = Shard("", plan, Restored(40, plan.optimizer, content), lambda message, code: None)
    try:
        assert shard.writer.await_turn(SECS)
        wait_until(lambda: [part.step for part in shard.writer.parts()] == steps, SECS, f"the parts of {steps}")
        assert shard._graph.num_snapshots == len(steps)
    finally:
        shard.close()


@pytest.mark.parametrize(
    ("step", "slots", "optimizer", "reason"),
    [
        (40, (), "", "the checkpoint of step 40 has none"),
        (40, (), "another", "the checkpoint's optimizer is another"),
        (40, ("velocity",), "", None),
        (0, (), "", None),
    ],
)
def test_an_optimizer_that_continues_without_its_slots_says_so_once(
    step: int,
    slots: tuple[str, ...],
    optimizer: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In averaging mode with `average_slots: false` checkpoints have none."""
    monkeypatch.setattr("ps_service.shard.ShardGraph", HeldGraph)
    monkeypatch.setattr(HeldGraph, "slot_names", ["velocity"])
    plan = ShardPlan("run", 1, 0, sample_job(), LAYOUT, None)
    zeros, nothing = np.zeros(LAYOUT.parameters.shard_size, np.float32), np.zeros(0, np.uint8)
    content = ShardContent(zeros, dict.fromkeys(slots, zeros), {}, nothing, nothing)
    shard = Shard("", plan, Restored(step, optimizer or plan.optimizer, content), lambda message, code: None)
    shard.close()
    warnings = [record.getMessage() for record in caplog.records if record.name == "psfleet.ps"]
    assert warnings == ([] if reason is None else [f"optimizer {plan.optimizer} starts without state: {reason}"])


def test_a_stop_that_other_ps_refused_is_moved_to_the_last_step_of_the_job(shard: Any) -> None:
    """This ps would otherwise write no part of that step."""
    job = sample_job()
    shard.plan, shard.final_step, shard._scheduled = plan_of(job), job.train.steps, set()
    shard._lock, shard.step = threading.Lock(), 97
    shard._graph.set_final_step = shard._graph.raise_final_step = lambda step: True
    assert shard.schedule_checkpoint(98, stop=True)
    shard.step = 98
    assert shard.schedule_checkpoint(101, stop=True)
    assert shard.final_step == 100
    assert shard._is_due(100)


def test_the_last_step_of_the_job_has_a_part_after_a_stop_that_only_this_ps_accepted(shard: Any) -> None:
    """The chief was killed between its requests: the fleet trains on, and no other chief knows of the stop."""
    job = sample_job(checkpoint={"every_steps": 1000})
    shard.plan, shard.final_step, shard._scheduled = plan_of(job), job.train.steps, set()
    shard._lock, shard.step = threading.Lock(), 50
    shard._graph.set_final_step = lambda step: True
    assert shard.schedule_checkpoint(51, stop=True)
    shard.step = 99
    assert shard._is_due(100)


def test_a_shard_whose_resources_cannot_be_dropped_ends_its_threads_all_the_same(shard: Any) -> None:
    """A shared ps logs the error, and serves other runs for weeks."""
    ended: list[str] = []

    def fail() -> None:
        raise tf.errors.NotFoundError(None, None, "no such container")

    shard.plan, shard._closing = plan_of(sample_job()), threading.Event()
    shard._graph = SimpleNamespace(close=fail)
    shard._end_exchanges = lambda: ended.append("exchanges")
    shard._reductions = SimpleNamespace(close=lambda: ended.append("pause"))
    shard._thread = SimpleNamespace(join=lambda secs: ended.append("loop"), is_alive=lambda: False)
    shard.writer = SimpleNamespace(
        stop=lambda: None, await_turn=lambda secs: True, close=lambda: ended.append("writer")
    )
    with pytest.raises(tf.errors.NotFoundError):
        shard.close()
    assert ended == ["pause", "exchanges", "loop", "writer"]
