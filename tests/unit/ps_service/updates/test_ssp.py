"""Ssp mode: which workers wait for slower ones, and that none waits for a worker that is gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, GraphFleet, InProcessWorker, graph_fleet

from psfleet.layout import Layout, TensorSpec
from psfleet.tf import ShardVariables
from psfleet.tf.waits import SspWaits

EVENTS = 40
FINAL_STEP = 100

Step = Future[tuple[float, np.ndarray]]


class Member:
    """A worker of a fleet, with the numbers of its gradients."""

    def __init__(self, index: int, worker: InProcessWorker) -> None:
        self.index = index
        self.worker = worker
        self.number = 0
        self.step: Step | None = None

    def push(self, x: float = 0) -> Step:
        """Pushes the next gradient; it is done when this worker may begin another step."""
        self.step = self.worker.push(x, 0, self.number)
        self.number += 1
        return self.step


@contextmanager
def racing(workers: int, bound: int, num_ps: int = 1, **sections: Any) -> Iterator[tuple[GraphFleet, list[Member]]]:
    """A fleet in ssp mode, whose workers have begun."""
    update = {"mode": "ssp", "bound": bound}
    with graph_fleet(num_ps, fleet={"workers": workers}, update=update, **sections) as fleet, ExitStack() as stack:
        members = [Member(index, stack.enter_context(fleet.worker(index))) for index in range(workers)]
        for member in members:
            member.worker.session.await_step(0)
        yield fleet, members


def present(fleet: GraphFleet, *indices: int) -> None:
    fleet.shards[0].updates.set_present(indices)


def complete(fleet: GraphFleet, member: Member) -> None:
    """Makes a step for which the worker does not wait."""
    step = member.push()
    fleet.advance()
    step.result(STEP_SECS)


@pytest.mark.parametrize("bound", [0, 2])
def test_a_worker_begins_no_step_while_it_is_more_than_the_bound_ahead(bound: int) -> None:
    with racing(2, bound, num_ps=2) as (fleet, (fast, slow)):
        for _ in range(bound):
            complete(fleet, fast)
        waiting = fast.push()
        fleet.advance()
        fleet.wait_for_size("waiting", 1)
        assert not waiting.done()
        complete(fleet, slow)
        waiting.result(STEP_SECS)


def test_members_without_a_clock_are_no_error() -> None:
    """They have joined for a job with a higher worker limit; the error ended the ps."""
    with racing(2, bound=0) as (fleet, (first, second)):
        steps = [first.push(), second.push()]
        present(fleet, 0, 1, 10_000)
        for _ in steps:
            fleet.advance()
        for step in steps:
            step.result(STEP_SECS)


def test_a_worker_reads_the_clocks_after_the_number_of_its_gradient() -> None:
    """The ps sets its clock first, and then the number: a worker that finds the number then finds that clock, too."""
    layout = Layout.plan([TensorSpec("w", (4,))], [], [], num_ps=1, bucket_bytes=4096)
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        variables = ShardVariables(layout, 0, 2, "run/1", device="")
        zero = tf.constant(0, tf.int64)
        SspWaits(0).wait(variables, 0, zero, zero)
        reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp" and _handle(op) == "clocks"]
    assert len(reads) == 3, "before and after the registration for a token, and after a token"
    for read in reads:
        assert any(op.type == "ResourceGather" and _handle(op) == "last_number" for op in read.control_inputs), read


def _handle(op: tf.Operation) -> str:
    """The shared name of the variable that an operation reads, in a loop or out of it."""
    handle = op.inputs[0].op
    while handle.type != "VarHandleOp":
        handle = handle.inputs[0].op
    name: str = handle.get_attr("shared_name").decode()
    return name.rsplit("/")[-1]


@pytest.mark.extended
def test_a_worker_waits_for_its_own_gradient_however_slow_the_others_are() -> None:
    """Without it a worker would push a gradient of weights that lack the one before."""
    with racing(2, bound=3) as (fleet, (fast, _)):
        step = fast.push(1)
        fleet.wait_for_size("waiting", 1)
        assert not step.done()
        fleet.advance()
        assert step.result(STEP_SECS)[1].tolist() == [[1, FINAL_STEP]]
        assert fleet.weights() == [-1, -1]


def test_nobody_waits_for_a_worker_that_is_gone_and_it_comes_back_at_the_step_of_the_slowest() -> None:
    with racing(3, bound=0) as (fleet, (first, second, gone)):
        for each in (0, 1):
            steps = [first.push(), second.push()]
            fleet.advance()
            fleet.advance()
            if each == 0:
                fleet.wait_for_size("waiting", 2)
                assert not any(step.done() for step in steps)
                present(fleet, first.index, second.index)
            for step in steps:
                step.result(STEP_SECS)
        present(fleet, 0, 1, 2)
        gone.worker.session.await_step(0)
        step = first.push()
        fleet.advance()
        fleet.wait_for_size("waiting", 1)
        assert not step.done(), "the others wait for the worker that is back, for one step"
        for member in (second, gone):
            member.push()
            fleet.advance()
        for member in (first, second, gone):
            assert member.step is not None
            member.step.result(STEP_SECS)


def test_a_worker_that_comes_back_has_made_the_steps_that_it_had_made() -> None:
    """Its wait has ended at a deadline, for example, and it opens another session."""
    with racing(2, bound=1) as (fleet, (fast, slow)):
        complete(fleet, fast)
        step = fast.push()
        fleet.advance()
        fleet.wait_for_size("waiting", 1)
        assert not step.done()
        present(fleet, slow.index)
        step.result(STEP_SECS)
        present(fleet, fast.index, slow.index)
        before = fleet.size("waiting")
        begun = fleet.threads.submit(fast.worker.session.await_step, 0)
        fleet.wait_for_size("waiting", before + 1)
        assert not begun.done(), "it is two steps ahead"
        complete(fleet, slow)
        begun.result(STEP_SECS)


def test_nobody_waits_for_steps_that_another_one_missed_if_both_come_back() -> None:
    with racing(2, bound=0) as (fleet, (first, second)):
        present(fleet, first.index)
        for _ in range(3):
            complete(fleet, first)
        present(fleet)
        for member in (second, first):
            fleet.threads.submit(member.worker.session.await_step, 0).result(STEP_SECS)


def test_a_gradient_that_is_pushed_twice_counts_as_one_step() -> None:
    """By the successor of a worker that was killed after its push."""
    with racing(2, bound=0) as (fleet, (fast, slow)):
        steps = [fast.push(), slow.push()]
        for _ in steps:
            fleet.advance()
        for step in steps:
            step.result(STEP_SECS)
        slow.number -= 1
        repeated = slow.push()
        fleet.advance()
        repeated.result(STEP_SECS)
        waiting = fast.push()
        fleet.advance()
        fleet.wait_for_size("waiting", 1)
        assert not waiting.done(), "the other worker has made one step, not two"
        complete(fleet, slow)
        waiting.result(STEP_SECS)
        assert fleet.shards[0].counters().used[:2].tolist() == [2, 2]


@pytest.mark.extended
def test_nobody_waits_after_the_final_step() -> None:
    with racing(2, bound=1, train={"steps": 2, "batch_size": 1}) as (fleet, (fast, _)):
        for _ in range(2):
            step = fast.push()
            fleet.advance()
            assert step.result(STEP_SECS) is not None


@pytest.mark.extended
@pytest.mark.parametrize(("bound", "seed"), [(0, 1), (1, 2), (2, 3)])
def test_exactly_those_wait_who_must_whatever_happens_in_which_order(bound: int, seed: int) -> None:
    """Random steps, ends and returns of three workers, compared with clocks in Python after each."""
    chance = random.Random(seed)
    with racing(3, bound, train={"steps": 1000, "batch_size": 1}) as (fleet, members):
        clocks, kept = dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
        for event in range(EVENTS):
            idle = [each for each in members if each.step is None or each.step.done()]
            what = f"event {event}, clocks {clocks}, idle {[each.index for each in idle]}"
            away = [index for index in range(3) if index not in clocks]
            if away and chance.random() < 0.2:
                # Frozen until now: it is counted again from its next gradient on.
                present(fleet, 0, 1, 2)
            elif len(clocks) > 1 and chance.random() < 0.2:
                gone = chance.choice(list(clocks))
                kept[gone] = clocks.pop(gone)
                present(fleet, *clocks)
            else:
                member = chance.choice(idle)
                member.push()
                fleet.advance()
                start = max(kept[member.index], min(clocks.values()))
                clocks[member.index] = clocks.get(member.index, start) + 1
            floor = min(clocks.values())
            for each in members:
                if each.step is None:
                    continue
                if clocks.get(each.index, -1) - floor <= bound:
                    each.step.result(STEP_SECS)
                else:
                    assert not each.step.done(), what
