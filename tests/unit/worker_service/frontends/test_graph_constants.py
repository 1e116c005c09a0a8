"""A variable of a graph program that nothing can change is frozen: no worker pushes or pulls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import Stepper, sample_job

from psfleet.job.program import GraphProgram
from worker_service.frontends import FrontEnd, front_end

v1 = tf.compat.v1
TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
BATCH = [np.array([2, 0, 1, 1])]


def front_of(loss: Callable[[Any], Any]) -> FrontEnd:
    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(BATCH[0])

    return front_end(GraphProgram(loss=loss, train=train), sample_job(), 1, 0)


def loss_of(use: Callable[[Any], Any], use_resource: bool = True) -> Callable[[Any], tf.Tensor]:
    """A loss that gathers rows of a table, and does something with the table."""

    def loss(batch: Any) -> tf.Tensor:
        table = v1.get_variable(
            "table", [3, 2], trainable=False, initializer=v1.constant_initializer(TABLE), use_resource=use_resource
        )
        update = use(table)
        if update is not None:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
        return tf.reduce_sum(v1.get_variable("w", [2]) * tf.nn.embedding_lookup(table, batch))

    return loss


def not_in_a_step(table: Any) -> None:
    v1.assign(table, table + 1)


READS: dict[str, Callable[[Any], Any]] = {
    "not at all": lambda table: None,
    "value": lambda table: tf.identity(table.read_value() * 2 + table),
    "rows": lambda table: tf.gather(table, [0]),
    "shape": lambda table: tf.shape(table),
    "initialized": lambda table: v1.is_variable_initialized(table),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "assign": lambda table: v1.assign(table, table + 1),
    "assign_add": lambda table: v1.assign_add(table, tf.ones([3, 2])),
    "rows": lambda table: v1.scatter_add(table, [0], [[1.0, 1.0]]),
    "not in a step": not_in_a_step,
}


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("name", READS)
def test_a_variable_that_is_only_read_is_frozen(name: str, use_resource: bool) -> None:
    front = front_of(loss_of(READS[name], use_resource))
    assert ([spec.name for spec in front.frozen], front.state) == (["table"], ())
    stepper = Stepper.of(front)
    np.testing.assert_array_equal(front.initial_values()["table"], TABLE)
    np.testing.assert_array_equal(stepper.gradients(BATCH)["w"], TABLE[BATCH[0]].sum(axis=0))
    assert stepper.graph.new_state == ()


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_variable_with_an_assignment_is_state(name: str, use_resource: bool) -> None:
    front = front_of(loss_of(CHANGES[name], use_resource))
    assert ([spec.name for spec in front.state], front.frozen) == (["table"], ())


def test_a_variable_that_a_function_or_a_branch_changes_is_state() -> None:
    halved = tf.function(lambda table: table.assign(table / 2).read_value(), autograph=False)
    for change in (
        halved,
        lambda table: tf.cond(tf.constant(True), lambda: halved(table), lambda: table + 0),
        lambda table: tf.while_loop(lambda i: i < 2, lambda i: i + halved(table)[0, 1], [tf.constant(0.0)])[0],
    ):
        front = front_of(loss_of(change))
        assert ([spec.name for spec in front.state], front.frozen) == (["table"], ())


@pytest.fixture(params=[True, False], ids=["functions", "switches"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Branches and loops of version 2, as by default, and of version 1."""
    before = v1.control_flow_v2_enabled()
    switch_control_flow(request.param)
    yield
    switch_control_flow(before)


def switch_control_flow(has_functions: bool) -> None:
    if has_functions:
        v1.enable_control_flow_v2()
    else:
        v1.disable_control_flow_v2()


def floats(step: Any) -> tf.Tensor:
    return tf.cast(step, tf.float32)


def in_branch(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda step: tf.cond(tf.constant(True), lambda: floats(call(step)), lambda: 0.0)


def in_loop(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Two passes."""
    return lambda step: tf.while_loop(
        lambda i, total: i < 2, lambda i, total: (i + 1, total + floats(call(step))), [tf.constant(0), tf.constant(0.0)]
    )[1]


def in_function(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda step: tf.function(lambda: floats(call(step)), autograph=False)()


PLACES: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "branch": in_branch,
    "loop": in_loop,
    "function": in_function,
    "function in a branch in a loop": lambda call: in_loop(in_branch(in_function(call))),
}


def loss_of_step(use: Callable[[Any], Any]) -> Callable[[Any], tf.Tensor]:
    """A loss that is what a function makes of the global step, whatever the weights are."""
    return lambda batch: tf.reduce_sum(v1.get_variable("w", [2])) * 0 + use(v1.train.get_or_create_global_step())


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("place", PLACES)
def test_a_global_step_that_is_read_in_a_branch_a_loop_or_a_function_is_that_of_the_gradient(place: str) -> None:
    front = front_of(loss_of_step(PLACES[place](lambda step: step)))
    assert ([spec.name for spec in front.frozen], front.state) == (["global_step"], ())
    stepper = Stepper.of(front)
    found = [stepper.run(stepper.graph.loss, BATCH, number=number) for number in range(3)]
    assert found == [number * (2 if "loop" in place else 1) for number in range(3)]


def test_a_constant_that_is_named_as_a_global_step_in_a_scope_keeps_its_value() -> None:
    def loss(batch: Any) -> tf.Tensor:
        initializer = v1.constant_initializer(50000)
        count = v1.get_variable("net/global_step", [], tf.int64, initializer, trainable=False)
        return tf.reduce_sum(v1.get_variable("w", [2])) * 0 + floats(count)

    front = front_of(loss)
    stepper = Stepper.of(front)
    assert [stepper.run(stepper.graph.loss, BATCH, number=number) for number in range(3)] == [50000] * 3


@pytest.mark.usefixtures("control_flow")
@pytest.mark.parametrize("place", PLACES)
def test_a_global_step_that_the_program_changes_there_is_state(place: str) -> None:
    front = front_of(loss_of_step(PLACES[place](lambda step: step.assign_add(10))))
    assert ([spec.name for spec in front.state], front.frozen) == (["global_step"], ())


def test_a_step_reads_the_values_of_the_fleet_beside_state_that_changes() -> None:
    def counting(table: Any) -> Any:
        return v1.assign_add(
            v1.get_variable("count", [], trainable=False, initializer=v1.zeros_initializer()), tf.reduce_max(table)
        )

    front = front_of(loss_of(counting))
    assert ([spec.name for spec in front.state], [spec.name for spec in front.frozen]) == (["count"], ["table"])
    stepper = Stepper.of(front)
    values = front.initial_values() | {"table": TABLE * 10}
    for _ in range(2):
        assert stepper.run(stepper.graph.new_state, BATCH, values) == (50.0,)


def test_constants_may_be_infinite_as_those_of_keras() -> None:
    def masked(table: Any) -> None:
        v1.get_variable("mask", [2], trainable=False, initializer=v1.constant_initializer([0, -np.inf]))

    assert front_of(loss_of(masked)).initial_values()["mask"].tolist() == [0, -np.inf]
