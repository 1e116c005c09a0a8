"""Points at which the graph of a step can end early: which operations wait for them, and where there are none."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from worker_service.cancellation_points import NUM_POINTS, add_points


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
