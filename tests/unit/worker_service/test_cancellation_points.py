"""Points at which the graph of a step can end early: which operations wait for them, and where there are none."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from worker_service.cancellation_points import NUM_POINTS, add_points

BRANCH = 50
"""Operations of a branch."""
WAIT_SECS = 10


@pytest.mark.parametrize("failing_point", [None, 0, NUM_POINTS // 2])
def test_operations_behind_a_point_that_fails_do_not_run(failing_point: int | None) -> None:
    called: list[int] = []
    made = 0

    def failing() -> tf.Operation:
        nonlocal made
        made += 1
        return tf.raw_ops.Assert(condition=tf.constant(made - 1 != failing_point), data=["the point"])

    def link(value: np.float32, at: int) -> np.float32:
        called.append(at)
        return value

    with tf.Graph().as_default() as graph:
        value = tf.constant(1.0)
        for at in range(10 * NUM_POINTS):
            value = tf.numpy_function(lambda value, at=at: link(value, at), [value], tf.float32)
        num_points = add_points(graph.get_operations(), [value], failing)
        assert num_points == made >= NUM_POINTS
        with v1.Session(graph=graph) as session:
            if failing_point is None:
                assert session.run(value) == 1
                assert called == list(range(10 * NUM_POINTS))
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match="the point"):
                    session.run(value)
                share = (failing_point + 1) / (NUM_POINTS + 1)
                assert len(called) == pytest.approx(share * 10 * NUM_POINTS, abs=12)


def test_no_operation_runs_that_the_results_do_not_need() -> None:
    with tf.Graph().as_default() as graph:
        unfed = v1.placeholder(tf.float32, [])
        value = tf.constant(1.0)
        for _ in range(50):
            value, unfed = value + 1, unfed + 1
        add_points(graph.get_operations(), [value], tf.no_op)
        with v1.Session(graph=graph) as session:
            assert session.run(value) == 51


def test_branches_do_not_wait_for_each_other() -> None:
    """An operation of the first branch ends after the first one of the second, which was made later."""
    second_began = threading.Event()

    def link(value: np.float32, branch: int, at: int) -> np.float32:
        if branch:
            second_began.set()
        elif at == BRANCH // 2:
            assert second_began.wait(WAIT_SECS)
        return value

    with tf.Graph().as_default() as graph:
        begin, ends = tf.constant(1.0), []
        for branch in range(2):
            value = begin
            for at in range(BRANCH):
                of_branch = functools.partial(link, branch=branch, at=at)
                value = tf.numpy_function(of_branch, [value], tf.float32)
            ends.append(value)
        assert add_points(graph.get_operations(), ends, tf.no_op) == NUM_POINTS
        config = v1.ConfigProto(inter_op_parallelism_threads=4)
        with v1.Session(graph=graph, config=config) as session:
            assert session.run(ends) == [1, 1]


def test_operations_of_other_tasks_neither_wait_for_a_point_nor_make_one_wait() -> None:
    own, other = "/job:worker/task:1", "/job:ps/task:0"
    with tf.Graph().as_default() as graph:
        value = tf.constant(1.0)
        for at in range(10 * NUM_POINTS):
            with tf.device(other if at % 2 else own):
                value = value + 1
        with tf.device(own):
            value = value + 1
            assert add_points(graph.get_operations(), [value], tf.no_op, f"{own}/device:CPU:0") > 0
        edges = [(before, each) for each in graph.get_operations() for before in each.control_inputs]
        assert edges
        assert not any(other in operation.device for edge in edges for operation in edge)


def test_a_graph_with_branches_of_tensorflow_1_has_no_points() -> None:
    """The operations of a branch that is not taken never run, and what waits for one does not, either."""
    with tf.Graph().as_default() as graph:
        v1.disable_control_flow_v2()
        chosen = v1.placeholder_with_default(True, [])
        value = tf.constant(1.0)
        for _ in range(50):
            value = v1.cond(chosen, lambda value=value: value + 1, lambda value=value: value - 1)
        assert add_points(graph.get_operations(), [value], tf.no_op) == 0
        with v1.Session(graph=graph) as session:
            assert session.run(value) == 51
