"""Which state a shard has after an update: the mean over the gradients' workers, or the chief's."""

from __future__ import annotations

import pytest
import tensorflow as tf
from support.graph_fleet import STEP_SECS, graph_fleet
from support.rows import first_rows
from support.state_front_end import MovingAverages, averages, moving_average

from ps_service.updates.state import StateUpdate
from psfleet.layout import Layout, TensorSpec
from psfleet.tf import ShardVariables
from psfleet.tf.state_wire import StateWire
from worker_service import push_pull

MOVING_AVERAGES = MovingAverages()
"""One for all tests, which then share the graphs of workers of equal jobs (`graph_fleet`)."""


def test_float_state_is_the_mean_over_the_contributors_of_the_step() -> None:
    """Both train on that mean in the next step: x is 1 and 3, and then 5 and 5."""
    with graph_fleet(front_end=MOVING_AVERAGES, fleet={"workers": 2}) as fleet:
        with fleet.worker(0) as first, fleet.worker(1) as second:
            for local_step, values in enumerate([(1, 3), (5, 5)]):
                steps = [worker.push(x, local_step) for worker, x in zip((first, second), values, strict=True)]
                fleet.advance()
                for step in steps:
                    step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([2, 5])] * 3


def test_state_is_that_of_the_global_step_and_not_of_a_gradient_that_waits() -> None:
    with graph_fleet(front_end=MOVING_AVERAGES, fleet={"workers": 2}) as fleet:
        with fleet.worker(0) as first, fleet.worker(1) as second:
            step = first.push(1, 0)
            fleet.wait_for_size("gradients", 1)
            assert averages(fleet.state()) == [0] * 3, "the gradient waits for another one"
            assert fleet.state()["steps"] == 0
            second.push(3, 0)
            fleet.advance()
            step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([2])] * 3
        assert fleet.state()["steps"] == 1
        assert fleet.state()["has_trained"].tolist() == [True] * 3


def test_state_that_comes_with_a_dropped_gradient_is_dropped() -> None:
    """Three gradients are there before the update of a quorum of 2: the state of the first two is averaged."""
    with graph_fleet(front_end=MOVING_AVERAGES, fleet={"workers": 2, "spares": 1}) as fleet:
        with fleet.worker(2) as first, fleet.worker(1) as second, fleet.worker(0) as chief:
            steps = []
            for number, (worker, x) in enumerate([(first, 1), (second, 3), (chief, 100)]):
                steps.append(worker.push(x, 0))
                fleet.wait_for_size("gradients", number + 1)
            fleet.advance()
            for step in steps:
                step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([2])] * 3
        assert fleet.state()["steps"] == 0, "integers are the chief's, whose gradient was not used"


@pytest.mark.extended
def test_averages_advance_while_the_chief_is_away() -> None:
    """Its counter on the ps stands still meanwhile; the other worker's own one does not."""
    with graph_fleet(front_end=MOVING_AVERAGES, fleet={"workers": 1, "spares": 1}) as fleet:
        with fleet.worker(0) as chief:
            step = chief.push(1, 0)
            fleet.advance()
            step.result(STEP_SECS)
        with fleet.worker(1) as other:
            for local_step, x in ((1, 2), (2, 3)):
                step = other.push(x, local_step)
                fleet.advance()
                step.result(STEP_SECS)
            own = fleet.layout.state.unpack(other.session.state())
        assert averages(fleet.state()) == averages(own) == [moving_average([1, 2, 3])] * 3
        assert (int(fleet.state()["steps"]), int(own["steps"])) == (1, 3)
        with fleet.worker(0) as chief:
            step = chief.push(4, 3)
            fleet.advance()
            step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([1, 2, 3, 4])] * 3
        assert fleet.state()["steps"] == 2


@pytest.mark.parametrize(
    ("num_ps", "small_bytes"), [(1, push_pull.SMALL_BYTES), (2, 0)], ids=["1-small buckets", "2-large buckets"]
)
def test_state_is_not_rounded_on_the_wire(num_ps: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 has 8 bits; x and its moving average need 9 and 10. The chief continues from what it has pulled."""
    monkeypatch.setattr(push_pull, "SMALL_BYTES", small_bytes)
    x = 1 + 1 / 256
    with graph_fleet(num_ps, MovingAverages(), update={"wire": "bfloat16"}, fleet={"workers": 1}) as fleet:
        with fleet.worker(0) as chief:
            for local_step in range(2):
                step = chief.push(x, local_step)
                fleet.advance()
                step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([x, x])] * 3
        assert fleet.state()["steps"] == 2


def test_a_shard_without_state_has_no_operation_for_it() -> None:
    layout = Layout.plan([TensorSpec("w", (4,))], [TensorSpec("mean", (3,))], [], 2, 4096)
    with tf.Graph().as_default() as graph:
        variables = ShardVariables(layout, 1, 2, "run/1", device="", keeps_previous=True)
        update, wire = StateUpdate(variables), StateWire(layout.state_ranges(1), True, tf.float32)
        worker, tail = tf.constant(0), tf.constant([0.5])
        before = len(graph.get_operations())
        assert update.initial_means() == update.joined([]) == []
        assert update.added([], [], worker, tf.constant(True), tail) == []
        assert update.moved([], worker, 0.5) == wire.push(tail) == wire.pull(tail) == []
        assert wire.pushed(tail) == wire.pulled(tail, tail) == ([], tail)
        assert len(graph.get_operations()) == before + 1, "only the constant True of this test"
    assert variables.previous_state == []


@pytest.mark.parametrize("index", first_rows([0, 1]))
def test_a_worker_that_dies_between_the_pushes_to_two_ps_leaves_the_state_exact(index: int) -> None:
    """ps 0 makes the step and ps 1 waits: the successor repeats the step on the state of before it, on both."""
    with graph_fleet(2, MOVING_AVERAGES, fleet={"workers": 2}) as fleet, fleet.worker(1 - index) as other:
        with fleet.worker(index) as dying:
            steps = [dying.push(1, 0), other.push(3, 0)]
            fleet.advance()
            for step in steps:
                step.result(STEP_SECS)
            last = other.push(6, 1)
            fleet.wait_for_size("gradients", 1)
            fleet.die_between_pushes(dying, 2, 1)
        fleet.advance(0)
        with fleet.worker(index) as successor:
            repeat = successor.push(2, 1)
            fleet.advance(1)
            for step in (repeat, last):
                step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([2, 4])] * 3
        assert fleet.state()["steps"] == 2


def test_a_worker_that_waits_for_the_step_of_its_predecessor_continues_with_the_state_after_it() -> None:
    with graph_fleet(2, MOVING_AVERAGES, fleet={"workers": 2}) as fleet, fleet.worker(1) as other:
        with fleet.worker(0) as killed:
            killed.push(1, 0)
            fleet.wait_for_size("gradients", 1)
            killed.session.close()
        with fleet.worker(0) as successor:
            awaited = fleet.threads.submit(successor.session.await_step, 0)
            fleet.wait_for_size("waiting", 1)
            step = other.push(3, 0)
            fleet.advance()
            awaited.result(STEP_SECS)
            step.result(STEP_SECS)
            steps = [successor.push(5, 1), other.push(5, 1)]
            fleet.advance()
            for step in steps:
                step.result(STEP_SECS)
        assert averages(fleet.state()) == [moving_average([2, 5])] * 3
        assert fleet.state()["steps"] == 2


def test_async_state_moves_to_that_of_each_gradient_by_one_share_of_the_workers() -> None:
    """Two workers: half the way. The chief is away for the second gradient."""
    with graph_fleet(front_end=MOVING_AVERAGES, update={"mode": "async"}, fleet={"workers": 2}) as fleet:
        with fleet.worker(0) as chief:
            step = chief.push(1, 0)
            fleet.advance()
            step.result(STEP_SECS)
            assert averages(fleet.state()) == [0.25] * 3
        with fleet.worker(1) as other:
            step = other.push(3, 1)
            fleet.advance()
            step.result(STEP_SECS)
        pushed = 0.5 * 0.25 + 0.5 * 3
        assert averages(fleet.state()) == [(0.25 + pushed) / 2] * 3
        assert fleet.state()["steps"] == 1


@pytest.mark.extended
def test_async_state_of_a_dropped_gradient_is_dropped() -> None:
    stale = {"policy": "drop", "bound": 0}
    with graph_fleet(
        front_end=MOVING_AVERAGES, update={"mode": "async", "stale": stale}, fleet={"workers": 2}
    ) as fleet:
        with fleet.worker(0) as first, fleet.worker(1) as late:
            for worker, x in ((first, 1), (late, 100)):
                step = worker.push(x, 0)
                fleet.advance()
                step.result(STEP_SECS)
        assert averages(fleet.state()) == [0.25] * 3
