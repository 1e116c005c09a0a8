"""A worker ends a step that the fleet has completed without it, with what the ps have then."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from support.graph_fleet import DYING_SECS, SIZE, STEP_SECS, GraphFleet, InProcessWorker, TwoTensors, batch, graph_fleet
from support.rows import first_rows
from support.state_front_end import MovingAverages, averages, moving_average

from psfleet.errors import LostPeerError
from psfleet.job.job import parse_job
from psfleet.layout import Layout
from psfleet.polling import wait_until
from psfleet.tf.own_session import REFUSED
from worker_service import session
from worker_service.abandonment import Abandonment, may_abandon_steps
from worker_service.allowance import Allowance
from worker_service.frontends.interface import TrainingGraph
from worker_service.session_errors import RefusedCallError

SPARE = {"workers": 1, "spares": 1}
MOVING_AVERAGES = MovingAverages()


class BlockedTensors(TwoTensors):
    """`TwoTensors` of which no gradient comes if its batch is blocked."""

    def build(self, *args: Any, **named: Any) -> TrainingGraph:
        """See `FrontEnd`."""
        training = super().build(*args, **named)
        first, late = training.gradients
        with tf.control_dependencies([late]):
            return replace(training, gradients=(tf.identity(first), late))


BLOCKED_TENSORS = BlockedTensors()
CHAIN = 100
"""Operations, each of which takes `WAIT_SECS` if the batch is blocked."""
WAIT_SECS = 0.02


class ChainedTensors(TwoTensors):
    """`TwoTensors` whose gradients come after a chain of operations, as those of a model with many layers."""

    num_called = 0
    never = threading.Event()

    def build(self, layout: Layout, parameters: Any, *_: object, **__: object) -> TrainingGraph:
        """See `FrontEnd`."""
        del layout
        x, blocked = tf.compat.v1.placeholder(tf.float32, []), tf.compat.v1.placeholder(tf.int32, [])

        def link(value: np.float32, is_slow: np.int32) -> np.float32:
            if is_slow:
                self.num_called += 1
                self.never.wait(WAIT_SECS)
            return value

        value = x
        for _ in range(CHAIN):
            value = tf.ensure_shape(tf.numpy_function(link, [value, blocked], tf.float32), [])
        gradients = tuple(value * (1 + part / 8) for part in reversed(tf.split(tf.concat(parameters, 0), 2)))
        return TrainingGraph((x, blocked), tf.zeros([]), gradients, (), (), None)


CHAINED_TENSORS = ChainedTensors()


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also steps that are short, and the first one, may be abandoned."""
    monkeypatch.setattr(session, "Allowance", partial(Allowance, min_secs=0))


class GatedTensors(TwoTensors):
    """`TwoTensors` whose gradients come once `gate` is set, if x is 7.

    Attributes:
        gate: For the test to set.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()

    def build(self, *args: Any, **named: Any) -> TrainingGraph:
        """See `FrontEnd`."""
        training = super().build(*args, **named)

        def pass_gate(x: np.ndarray) -> np.ndarray:
            assert x != 7 or self.gate.wait(STEP_SECS)
            return x

        with tf.control_dependencies([tf.numpy_function(pass_gate, [training.feeds[0]], tf.float32)]):
            return replace(training, gradients=tuple(tf.identity(gradient) for gradient in training.gradients))


def begin_step_without_end(
    fleet: GraphFleet, worker: InProcessWorker, local_step: int
) -> Future[tuple[float | None, np.ndarray]]:
    """Has a worker begin a step whose gradient never comes; returns when it waits at the first ps, too."""
    waiting = fleet.size("waiting")
    begun = worker.threads.submit(worker.session.train, batch(1, blocked=True), local_step, local_step)
    fleet.wait_for_size("waiting", waiting + 1)
    return begun


@pytest.mark.parametrize("sections", first_rows([{}, {"update": {"bucket_bytes": 4096}}, {"num_ps": 2}], 1))
def test_a_step_that_the_fleet_completes_ends_without_a_gradient_and_pulls(sections: dict[str, Any]) -> None:
    """In the next step the worker's gradient is that of the parameters that it has pulled: 3 (1 + -1 / 8)."""
    with (
        graph_fleet(front_end=BLOCKED_TENSORS, fleet=SPARE, **sections) as fleet,
        fleet.worker(0) as chief,
        fleet.worker(1) as slow,
    ):
        slow_step = begin_step_without_end(fleet, slow, 0)
        chief_step = chief.push(1, 0)
        fleet.advance()
        loss, steps = slow_step.result(STEP_SECS)
        assert loss is None
        assert steps.tolist() == [[1, 100]] * fleet.layout.num_ps
        assert np.unique(slow.session.parameters()).tolist() == [-1]
        assert chief_step.result(STEP_SECS)[0] is not None
        next_step = slow.push(3, 1)
        fleet.advance()
        assert next_step.result(STEP_SECS)[0] is not None
        assert fleet.weights() == [-1 - 3 * (1 - 1 / 8)] * 2
        counters = fleet.shards[0].counters()
        assert (counters.pushed[:2].tolist(), counters.used[:2].tolist()) == ([1, 1], [1, 1])


def test_a_session_that_is_resumed_after_a_step_was_abandoned_makes_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the call after the one that was abandoned is refused, so that it was not taken note of."""
    with (
        graph_fleet(front_end=CHAINED_TENSORS, fleet=SPARE) as fleet,
        fleet.worker(0) as chief,
        fleet.worker(1) as slow,
    ):
        with monkeypatch.context() as patch:
            refusal = tf.errors.AbortedError(None, None, REFUSED)
            patch.setattr(slow.session._sessions.server, "run", Mock(side_effect=refusal))
            slow_step = begin_step_without_end(fleet, slow, 0)
            chief.push(1, 0)
            fleet.advance()
            with pytest.raises(RefusedCallError):
                slow_step.result(STEP_SECS)
        assert slow.session.resume().global_step == 1
        next_step = slow.push(3, 1)
        chief.push(3, 1)
        fleet.advance()
        assert next_step.result(STEP_SECS)[0] is not None


def test_a_step_is_abandoned_only_when_all_ps_have_completed_it() -> None:
    with graph_fleet(num_ps=2, fleet=SPARE) as fleet, fleet.worker(0) as chief, fleet.worker(1) as slow:
        slow_step = begin_step_without_end(fleet, slow, 0)
        chief.push(1, 0)
        fleet.advance(0)
        fleet.advance(1)
        assert slow_step.result(STEP_SECS)[1].tolist() == [[1, 100], [1, 100]]


def test_no_two_steps_in_a_row_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is always late still has losses, which the chief records."""
    with graph_fleet(fleet=SPARE) as fleet, fleet.worker(0) as chief, fleet.worker(1) as slow:
        allowed: list[bool] = []
        train = slow.session._calls.train

        def noted(*args: Any) -> Any:
            allowed.append(args[-1])
            return train(*args)

        monkeypatch.setattr(slow.session._calls, "train", noted)
        slow_step = begin_step_without_end(fleet, slow, 0)
        chief.push(1, 0)
        fleet.advance()
        slow_step.result(STEP_SECS)
        for local_step in (1, 2):
            made = slow.push(1, local_step)
            fleet.advance()
            made.result(STEP_SECS)
        assert allowed == [True, False, True]


def test_a_late_step_that_is_not_abandoned_ends_with_what_the_fleet_has_then() -> None:
    """Not with the parameters of the step after it, on which the next gradient would be late, too."""
    gated = GatedTensors()
    with graph_fleet(front_end=gated, fleet=SPARE) as fleet, fleet.worker(0) as chief, fleet.worker(1) as slow:
        slow_step = begin_step_without_end(fleet, slow, 0)
        for local_step in range(4):
            chief_step = chief.push(0, local_step)
            fleet.advance()
            chief_step.result(STEP_SECS)
            if local_step == 0:
                assert slow_step.result(STEP_SECS)[0] is None
                slow_step = slow.push(7, 1)
        gated.gate.set()
        loss, steps = slow_step.result(STEP_SECS)
        assert loss is not None
        assert steps.tolist() == [[4, 100]]


def test_a_step_that_is_not_abandoned_keeps_its_norm_and_counts_its_wait() -> None:
    waited = 0.3
    with graph_fleet(fleet=SPARE) as fleet, fleet.worker(0) as chief:
        chief.session.measure_norm(True)
        chief_step = chief.push(3, 0)
        fleet.wait_for_size("gradients", 1)
        time.sleep(waited)
        fleet.advance()
        assert chief_step.result(STEP_SECS)[0] is not None
        assert chief.session.gradient_norm() == pytest.approx(3 * (2 * SIZE) ** 0.5)
        assert fleet.shards[0].counters().waited_secs[0] >= waited


@pytest.mark.parametrize("stop_step", [None, 1])
def test_the_chief_does_not_abandon_the_final_step(stop_step: int | None) -> None:
    """That of the job, or of a stop, which only the first of two segments knows."""
    train = {"steps": 100 if stop_step else 1, "batch_size": 1}
    with (
        graph_fleet(front_end=BLOCKED_TENSORS, fleet=SPARE, train=train) as fleet,
        fleet.worker(1) as other,
        fleet.worker(0, step_secs=DYING_SECS) as chief,
    ):
        chief_step = begin_step_without_end(fleet, chief, 0)
        assert stop_step is None or fleet.shards[0].set_final_step(stop_step)
        other_step = other.push(1, 0)
        fleet.advance()
        assert other_step.result(STEP_SECS)[1].tolist() == [[1, 1]]
        with pytest.raises(LostPeerError, match="DeadlineExceeded"):
            chief_step.result(STEP_SECS)


def test_state_of_a_step_that_is_abandoned_is_the_average_and_otherwise_the_workers_own() -> None:
    with graph_fleet(front_end=MOVING_AVERAGES, fleet=SPARE) as fleet:
        with fleet.worker(0) as chief, fleet.worker(1) as slow:
            slow_step = begin_step_without_end(fleet, slow, 0)
            chief.push(1, 0)
            fleet.advance()
            assert slow_step.result(STEP_SECS)[0] is None
            own = fleet.layout.state.unpack(slow.session.state())
        assert averages(own) == averages(fleet.state()) == [moving_average([1])] * 3
        assert (int(own["steps"]), int(fleet.state()["steps"])) == (0, 1)


def test_a_step_ends_between_two_operations_of_its_program() -> None:
    """The gradient is that of a chain of operations that take two seconds."""
    chained = ChainedTensors()
    with (
        graph_fleet(front_end=chained, fleet=SPARE) as fleet,
        fleet.worker(0) as chief,
        fleet.worker(1) as slow,
    ):
        slow_step = slow.threads.submit(slow.session.train, batch(1, blocked=True), 0, 0)
        wait_until(lambda: chained.num_called, STEP_SECS, "the first operation of the chain")
        chief.push(1, 0)
        fleet.advance()
        assert slow_step.result(STEP_SECS)[0] is None
        assert chained.num_called < CHAIN


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"fleet": {"workers": 2, "spares": 1}}, True),
        ({"fleet": {"workers": 3}, "update": {"quorum": 2}}, True),
        ({"fleet": {"workers": 3}}, False),
        ({"fleet": {"workers": 2, "spares": 1}, "update": {"mode": "averaging", "local_steps": 2}}, False),
        ({"fleet": {"workers": 3}, "update": {"mode": "async"}}, False),
    ],
)
def test_steps_are_abandoned_in_sync_mode_with_more_workers_than_a_step_needs(
    sections: dict[str, Any], expected: bool
) -> None:
    fields = {"name": "sample", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 1}}
    job = parse_job({**fields, "train": {"steps": 2, "batch_size": 1}, **sections})
    assert may_abandon_steps(job) is expected


@pytest.mark.parametrize("gpus", [[], ["GPU:0"]], ids=["cpu", "gpu"])
def test_only_a_step_on_the_cpu_has_points_at_which_it_ends(gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    layout = Layout.plan(TwoTensors.parameters, (), (), 1, 1 << 20)
    with tf.Graph().as_default() as graph:
        part = Abandonment(1, 1, tf.compat.v1.placeholder(tf.int64, []))
        training = ChainedTensors().build(layout, [tf.zeros([2 * SIZE])])
        before = len(graph.get_operations())
        part.add_points(graph.get_operations(), training)
        assert (len(graph.get_operations()) > before) is not bool(gpus)
