"""The variables of a graph of the user's own, by name and as one vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet
from psfleet.errors import UsageError

EAGER = tf.ones([2])


def loss() -> tf.Tensor:
    weight = v1.get_variable("w", [2, 3], initializer=v1.ones_initializer(), use_resource=True)
    bias = v1.get_variable("b", [3], initializer=v1.zeros_initializer(), use_resource=False)
    v1.get_variable("unused", [7])
    return tf.reduce_sum(weight + bias)


@pytest.fixture
def session() -> Iterator[v1.Session]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def variables(session: v1.Session, target: Any = None, prefix: str = "") -> psfleet.Variables:
    made = psfleet.Variables(loss() if target is None else target, session, prefix)
    session.run(v1.global_variables_initializer())
    return made


def test_they_are_those_that_the_loss_reads(session: v1.Session) -> None:
    made = variables(session)
    assert made.names == ["w", "b"]
    made.set({"w": np.full((2, 3), 2, np.float32), "b": np.arange(3, dtype=np.float32)})
    found = made.get()
    np.testing.assert_array_equal(found["w"], np.full((2, 3), 2))
    np.testing.assert_array_equal(found["b"], [0, 1, 2])


def test_those_that_are_not_given_stay(session: v1.Session) -> None:
    made = variables(session)
    made.set({"b": np.arange(3, dtype=np.float32)})
    np.testing.assert_array_equal(made.get_flat(), [1] * 6 + [0, 1, 2])


def test_the_vector_holds_all_in_their_order(session: v1.Session) -> None:
    made = variables(session)
    np.testing.assert_array_equal(made.get_flat(), [1] * 6 + [0] * 3)
    made.set_flat(np.arange(9))
    np.testing.assert_array_equal(made.get()["b"], [6, 7, 8])
    np.testing.assert_array_equal(made.get_flat(), np.arange(9))
    with pytest.raises(UsageError, match=r"shape \[8\], expected \[9\]"):
        made.set_flat(np.zeros(8))


def test_the_vector_has_trainable_floating_point_variables_alone(session: v1.Session) -> None:
    """float32 holds all types of fewer bits; integers and what is not trainable are in `get` and `set`."""
    half = v1.get_variable("half", initializer=tf.constant([1.5, 2.5], tf.bfloat16))
    count = v1.get_variable("count", initializer=tf.constant(3, tf.int32))
    mean = v1.get_variable("mean", initializer=tf.constant(4.0), trainable=False)
    single = v1.get_variable("single", initializer=tf.constant([[5.0]]))
    made = variables(session, [half, count, mean, single])
    assert (made.names, made.trained) == (["half", "count", "mean", "single"], ["half", "single"])
    found = made.get_flat()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [1.5, 2.5, 5.0])
    made.set_flat(np.array([0.5, 1, 1.75]))
    np.testing.assert_array_equal(made.get_flat(), [0.5, 1, 1.75])
    assert (made.get()["count"], made.get()["mean"]) == (3, 4)
    with pytest.raises(UsageError, match="'half' has NaN or infinity"):
        made.set_flat(np.array([1e39, 1, 1]))
    with pytest.raises(UsageError, match="no variable is a trainable floating point number"):
        variables(session, [count]).get_flat()


def test_the_vector_is_of_float64_if_one_variable_is(session: v1.Session) -> None:
    exact = v1.get_variable("exact", initializer=tf.constant(0.1, tf.float64))
    made = variables(session, [exact, v1.get_variable("w", [1], initializer=v1.ones_initializer())])
    assert made.get_flat().dtype == np.float64
    made.set_flat(np.array([0.3, 1]))
    assert made.get()["exact"] == 0.3


def test_a_thousand_calls_add_no_operation(session: v1.Session) -> None:
    made = variables(session)
    session.graph.finalize()
    before = len(session.graph.get_operations())
    for _ in range(250):
        made.set(made.get())
        made.set_flat(made.get_flat())
    assert len(session.graph.get_operations()) == before


def test_a_prefix_tells_two_graphs_apart(session: v1.Session) -> None:
    first = variables(session, prefix="policy")
    assert first.names == ["policy/w", "policy/b"]
    with pytest.raises(UsageError, match="no tensor 'w'; expected 'policy/w' in place of 'w': rename it"):
        first.set({"w": np.zeros((2, 3), np.float32), "policy/b": np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "no tensor is given; expected one or more of 'w', 'b'"),
        (
            {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)},
            r"float32 \[3, 2\], expected float32 \[2, 3\]",
        ),
        ({"w": np.zeros((2, 3)), "b": np.zeros(3, np.float32)}, "'w' is float64"),
        ({"w": np.full((2, 3), np.inf, np.float32), "b": np.zeros(3, np.float32)}, "'w' has NaN or infinity"),
    ],
)
def test_what_does_not_match_changes_nothing(session: v1.Session, tensors: dict[str, np.ndarray], message: str) -> None:
    made = variables(session)
    with pytest.raises(UsageError, match=message):
        made.set(tensors)
    np.testing.assert_array_equal(made.get_flat(), [1] * 6 + [0] * 3)


def model() -> keras.Model:
    layers = [keras.Input((3,)), keras.layers.Dense(2, name="dense"), keras.layers.BatchNormalization(name="norm")]
    return keras.Sequential(layers, name="model")


def test_those_of_a_keras_model_have_its_paths(session: v1.Session) -> None:
    made = variables(session, model())
    assert made.trained == [f"model/{name}" for name in ("dense/kernel", "dense/bias", "norm/gamma", "norm/beta")]
    made.set_flat(np.arange(12))
    np.testing.assert_array_equal(made.get()["model/dense/bias"], [6, 7])
    assert "model/norm/moving_mean" in made.names


def test_a_keras_model_that_is_in_no_graph_is_refused() -> None:
    eager, message = model(), "'model/dense/kernel' is in no graph, expected those of a TensorFlow 1 graph"
    with tf.Graph().as_default(), v1.Session() as session, pytest.raises(UsageError, match=message):
        psfleet.Variables(eager, session)


def test_two_variables_of_one_name_are_refused(session: v1.Session) -> None:
    one = v1.get_variable("w", [1])
    with pytest.raises(UsageError, match=r"two variables have the name 'w'.*different prefixes"):
        psfleet.Variables([one, one], session)
    with pytest.raises(UsageError, match="depends on no variable"):
        psfleet.Variables(tf.constant(1.0), session)


def test_what_are_no_tensors_is_refused_in_one_line(session: v1.Session) -> None:
    made: Any = variables(session)
    for call, message in (
        (lambda: made.set(None), "tensors: a value of type NoneType, expected a mapping of names to arrays"),
        (lambda: made.set({made.names[0]: [[1], [1, 2]]}), "cannot be converted to an array"),
        (lambda: made.set_flat("abc"), "the vector cannot be converted to an array"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


@pytest.mark.parametrize("target", ["loss", 3, None, [1.0]])
def test_a_target_without_variables_is_refused(session: v1.Session, target: Any) -> None:
    with pytest.raises(UsageError, match="has no variables, expected a tensor, an operation, a model or a sequence"):
        psfleet.Variables(target, session)


def test_a_tensor_that_is_in_no_graph_is_refused(session: v1.Session) -> None:
    with pytest.raises(UsageError, match=r"a tensor of shape \(2,\) is in no graph, expected one of a TensorFlow 1"):
        psfleet.Variables(EAGER, session)


def test_what_is_no_session_is_refused(session: v1.Session) -> None:
    with pytest.raises(UsageError, match=r"the session is None, expected a tf\.compat\.v1\.Session"):
        psfleet.Variables(loss(), None)
