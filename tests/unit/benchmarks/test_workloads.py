"""Models and plans of benchmarks: shapes of ResNet-50, simulated compute, limits of links, memory between steps."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import links, resnet50, simulated_step
from benchmarks.children import ChildError
from benchmarks.link_hosts import floor_ms
from benchmarks.memory import ResidentMemory
from benchmarks.namespaces import Host
from benchmarks.simulated.program import synthetic, waiting_loss
from benchmarks.training_graph import fed_loss
from benchmarks.workload import Workload
from psfleet.tf.ancestors import ancestors


def test_the_shapes_are_those_of_resnet_50() -> None:
    shapes = resnet50.shapes()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032
    assert (shapes[0], shapes[-2]) == ((7, 7, 3, 64), (2048, 1000))


def test_a_simulated_gradient_comes_after_a_wait_which_comes_after_the_parameters() -> None:
    """A recipe that reads its variables from a ps while it waits would have them for nothing.

    So would one that sends a gradient while it waits.
    """
    with tf.Graph().as_default() as graph:
        loss = waiting_loss(tf.zeros([4]), [(3, 2), (5,)], 20)
        (wait,) = (op for op in graph.get_operations() if op.type == "PyFunc")
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables)
    assert len(variables) == 2
    assert {each.op for each in variables} <= ancestors([wait])
    for gradient in gradients:
        assert wait in ancestors([gradient.op])


def test_a_simulated_loss_has_a_gradient_for_each_variable() -> None:
    workload = Workload(0, "sgd", steps=1, batch_size=4, shapes=((2, 3), (5,)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loss, feed = fed_loss(workload, shard_index=0)
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables)
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run(gradients, feed(0))
        value = session.run(loss, feed(0))
    # The loss is mean(square(batch)) + the variables' means, with two variables of ones.
    assert value == pytest.approx(2 + np.mean(np.square(synthetic(0)[:4])), rel=1e-5)
    assert [each.shape for each in found] == [(2, 3), (5,)]
    np.testing.assert_allclose(found[0], 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(found[1], 1 / 5, rtol=1e-6)


def test_a_simulated_gradient_takes_no_time() -> None:
    """What a benchmark of the data plane measures is not the program's: the gradient is a constant of the graph."""
    with tf.Graph().as_default():
        loss = waiting_loss(tf.zeros([4]), [(3, 2), (5,)], 0)
        gradients = tf.gradients(loss, tf.compat.v1.trainable_variables())
    for each in gradients:
        source = each.op
        while source.type == "Identity":
            source = source.inputs[0].op
        assert source.type == "Const"


@pytest.mark.parametrize("is_lent", [True, False])
@pytest.mark.parametrize(("first", "slow"), [(10.0, True), (-10.0, False)])
def test_a_batch_whose_first_example_is_rare_waits_longer(first: float, slow: bool, is_lent: bool) -> None:
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        loss = waiting_loss(
            tf.constant([first, 0.0]), [[2]], wait_ms=5, slow_share=0.05, slow_factor=40, is_lent=is_lent
        )
        # Another process would not find the function.
        assert any("PyFunc" in operation.type for operation in graph.get_operations()) is not is_lent
        session.run(tf.compat.v1.global_variables_initializer())
        durations = []
        for _ in range(5):
            start = time.perf_counter()
            session.run(loss)
            durations.append(time.perf_counter() - start)
    # The shortest of several: the machine may be busy.
    assert (min(durations) >= 0.2) is slow


def test_a_link_is_busy_with_headers_too() -> None:
    assert floor_ms(1448, 1000) == pytest.approx(1514 * 8 / 1e6)
    assert floor_ms(4 * links.workload(1).num_parameters, 1000) == pytest.approx(194.9, abs=0.1)


def test_a_ps_has_as_many_buckets_as_its_bytes_say() -> None:
    num_bytes = 4 * links.workload(1).num_parameters
    for size, megabits, expected in ((2, 1000, 16), (4, 1000, 4), (4, 200, 16)):
        number = links.num_buckets(size, megabits)
        assert number == expected
        shard = num_bytes / size
        assert math.ceil(shard / links.bucket_bytes(num_bytes, size, number)) == number


def test_a_task_of_psfleet_names_all_ps() -> None:
    command = links.task("worker", 1, [Host("a", "10.0.0.1"), Host("b", "10.0.0.2")], "out", ["--set", "a=1"])
    assert command[1:4] == ["-m", "psfleet", "task"]
    assert command[5:] == [
        "--role", "worker", "--index", "1", "--ps", "10.0.0.1:2222,10.0.0.2:2222", "--out", "out", "--set", "a=1",
    ]  # fmt: skip


def test_the_goals_name_contenders_of_their_plan() -> None:
    plans = [
        links.plan(1000, 2, None),
        simulated_step.scaling(((1000,),), (2, 8), 10, 250),
        simulated_step.spare(10, 250),
    ]
    for plan in plans:
        names = {each.name for each in plan.contenders}
        assert {name for each in plan.group.comparisons for name in (each.contender, each.other)} <= names


def test_memory_is_the_median_of_the_samples_between_two_steps() -> None:
    memory = ResidentMemory(1)
    memory._samples = [(1.0, 900.0), (2.0, 100.0), (3.0, 600.0), (4.0, 200.0), (5.0, 900.0)]
    times = {10: 2.0, 20: 2.5, 30: 4.0, 40: 4.5}
    assert memory.between(times, 10, 30) == 200.0
    assert memory.between(times, 5, 25) == 100.0
    for first, last in ((31, 50), (50, 60)):
        with pytest.raises(ChildError, match=f"no sample of the ps's memory between the steps {first} and {last}"):
            memory.between(times, first, last)
