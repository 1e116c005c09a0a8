"""Graph programs give the loss, gradient and state of TensorFlow 1, whatever way they name their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import Stepper, sample_job

from psfleet.errors import LostPeerError, ProgramError
from psfleet.job.program import GraphProgram
from psfleet.layout import Layout
from worker_service.frontends import FrontEnd, front_end
from worker_service.local_step import LocalStep

v1 = tf.compat.v1
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(10, 3)).astype(np.float32)
Y = RANDOM.normal(size=10).astype(np.float32)
BATCH = [X[:4], Y[:4]]


def train(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shard(shards, shard)


def front_of(loss: Callable[[Any], Any], index: int = 0, **fields: Any) -> FrontEnd:
    return front_end(GraphProgram(loss=loss, **{"train": train, **fields}), sample_job(), 2, index)


def linear(batch: Any) -> tf.Tensor:
    x, y = batch
    with v1.variable_scope("linear"):
        weights = v1.get_variable("weights", [3, 1], initializer=v1.random_normal_initializer())
        bias = v1.get_variable("bias", [], initializer=v1.constant_initializer(0.5))
    return tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(x, weights), 1) + bias - y))


def test_loss_and_gradient_are_those_of_numpy() -> None:
    stepper = Stepper.of(front_of(linear))
    assert [(spec.name, spec.shape) for spec in stepper.front.parameters] == [
        ("linear/weights", (3, 1)),
        ("linear/bias", ()),
    ]
    values = stepper.front.initial_values()
    x, y = BATCH
    errors = x @ values["linear/weights"][:, 0] + values["linear/bias"] - y
    gradients = stepper.gradients(BATCH)
    assert stepper.run(stepper.graph.loss, BATCH) == pytest.approx(np.mean(errors**2), rel=1e-5)
    np.testing.assert_allclose(gradients["linear/weights"][:, 0], 2 * x.T @ errors / 4, rtol=1e-4)
    np.testing.assert_allclose(gradients["linear/bias"], 2 * errors.mean(), rtol=1e-4)
    assert stepper.graph.summaries is None


def test_a_step_that_is_built_without_gradients_has_the_same_loss() -> None:
    front = front_of(linear)
    layout = Layout.plan(front.parameters, front.state, front.frozen, num_ps=1, bucket_bytes=4096)
    losses = []
    for has_gradients in (True, False):
        step = LocalStep(front, layout, with_gradients=has_gradients)
        assert len(step.training.gradients) == (2 if has_gradients else 0)
        with v1.Session(graph=step.graph) as session:
            losses.append(session.run(step.training.loss, step.feeds(front.initial_values()) | step.batch(BATCH)))
    assert losses[0] == losses[1]


def test_initial_values_are_a_function_of_the_seed() -> None:
    name = "linear/weights"
    first, again = (front_of(linear, index).initial_values()[name] for index in (0, 1))
    np.testing.assert_array_equal(first, again)
    other = front_end(GraphProgram(loss=linear, train=train), sample_job(seed=8), 2, 0).initial_values()[name]
    assert not np.array_equal(first, other)


def test_networks_that_name_the_same_variable_share_it() -> None:
    def layer(x: tf.Tensor) -> tf.Tensor:
        with v1.variable_scope("net", reuse=v1.AUTO_REUSE):
            return tf.matmul(x, v1.get_variable("w", [3, 3], initializer=v1.ones_initializer()))

    def loss(batch: Any) -> tf.Tensor:
        return tf.reduce_sum(layer(layer(batch[0])))

    stepper = Stepper.of(front_of(loss))
    ones = np.ones((3, 3), np.float32)
    x = X[:4]
    expected = x.T @ np.ones((4, 3)) @ ones.T + (x @ ones).T @ np.ones((4, 3))
    np.testing.assert_allclose(stepper.gradients(BATCH)["net/w"], expected, rtol=1e-4, atol=1e-5)


def test_regularizers_and_loops_over_trainable_variables_see_the_parameters() -> None:
    def loss(batch: Any) -> tf.Tensor:
        with v1.variable_scope("net", regularizer=tf.nn.l2_loss):
            v1.get_variable("w", [2], initializer=v1.constant_initializer(3.0))
            v1.get_variable_scope().reuse_variables()
            v1.get_variable("w", [2])
        names = [variable.name for variable in v1.trainable_variables()]
        assert names == ["net/w:0"]
        return v1.losses.get_regularization_loss() + 2 * tf.add_n(v1.trainable_variables())[0]

    stepper = Stepper.of(front_of(loss))
    assert stepper.run(stepper.graph.loss, BATCH) == 9 + 6
    np.testing.assert_array_equal(stepper.gradients(BATCH)["net/w"], [5, 3])


def test_a_loss_may_wait_for_the_parameters() -> None:
    def loss(batch: Any) -> tf.Tensor:
        w = v1.get_variable("w", [2], initializer=v1.constant_initializer(3.0))
        with tf.control_dependencies([w, tf.group(*v1.trainable_variables())]):
            return tf.reduce_sum(w * tf.constant(2.0))

    stepper = Stepper.of(front_of(loss))
    assert stepper.run(stepper.graph.loss, BATCH) == 12
    assert stepper.gradients(BATCH)["w"].tolist() == [2, 2]


def test_gathered_rows_give_a_dense_gradient_and_untouched_variables_zeros() -> None:
    def loss(batch: Any) -> tf.Tensor:
        table = v1.get_variable("table", [5, 2], partitioner=v1.fixed_size_partitioner(2))
        v1.get_variable("unused", [2])
        return tf.reduce_sum(tf.nn.embedding_lookup(table, batch))

    stepper = Stepper.of(front_of(loss, train=lambda shard, shards: tf.data.Dataset.range(5)))
    gradients = stepper.gradients([np.array([1, 3, 3, 1])])
    np.testing.assert_array_equal(gradients["table"], [[0, 0], [2, 2], [0, 0], [2, 2], [0, 0]])
    np.testing.assert_array_equal(gradients["unused"], [0, 0])


def test_a_loop_gives_the_gradient_of_its_unrolled_form() -> None:
    def loss(batch: Any) -> tf.Tensor:
        w = v1.get_variable("w", [], initializer=v1.constant_initializer(2.0))
        return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a * w), (0, tf.constant(1.0)))[1]

    assert Stepper.of(front_of(loss)).gradients(BATCH)["w"] == 12


def counting(batch: Any) -> tf.Tensor:
    w = v1.get_variable("w", [], initializer=v1.ones_initializer())
    count = v1.get_variable("count", [], tf.int64, initializer=v1.zeros_initializer(), trainable=False)
    mean = v1.get_variable("mean", [], initializer=v1.zeros_initializer(), trainable=False)
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_add(count, 1))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(mean, tf.reduce_mean(batch[1])).op)
    v1.summary.scalar("weight", w)
    return w * tf.cast(count + 1, tf.float32)


def test_state_is_read_from_the_fleet_and_updated_by_the_step() -> None:
    stepper = Stepper.of(front_of(counting))
    assert [(spec.name, spec.dtype) for spec in stepper.front.state] == [("mean", "float32"), ("count", "int64")]
    values = stepper.front.initial_values() | {"count": np.array(5)}
    for _ in range(2):
        mean, count = stepper.run(stepper.graph.new_state, BATCH, values)
        assert count == 6
        assert mean == pytest.approx(Y[:4].mean())
    assert len(stepper.graph.updates) == 2
    stepper.run(stepper.graph.updates, BATCH, values)


def test_summaries_are_those_of_the_program() -> None:
    stepper = Stepper.of(front_of(counting))
    summary = v1.Summary.FromString(stepper.run(stepper.graph.summaries, BATCH))
    assert [(value.tag, value.simple_value) for value in summary.value] == [("weight", 1.0)]


def test_the_workers_graph_keeps_its_own_collections() -> None:
    stepper = Stepper.of(front_of(counting))
    assert stepper.session.graph.get_all_collection_keys() == []


def test_dropout_differs_between_workers() -> None:
    def loss(batch: Any) -> tf.Tensor:
        w = v1.get_variable("w", [50], initializer=v1.ones_initializer())
        return tf.reduce_sum(tf.nn.dropout(w, 0.5) * tf.range(50.0))

    losses = [
        float(stepper.run(stepper.graph.loss, BATCH)) for stepper in (Stepper.of(front_of(loss, i)) for i in (0, 1))
    ]
    assert losses[0] != losses[1]


def test_evaluation_is_the_mean_over_examples() -> None:
    front = front_of(linear, evaluate=lambda: tf.data.Dataset.from_tensor_slices((X, Y)))
    stepper = Stepper.of(front)
    values = front.initial_values()
    metrics = front.evaluate(values, lambda batch: float(stepper.run(stepper.graph.loss, batch)))
    errors = X @ values["linear/weights"][:, 0] + values["linear/bias"] - Y
    assert metrics == {"loss": pytest.approx(np.mean(errors**2), rel=1e-5)}


def test_evaluation_data_that_are_batches_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"x of shape \[\[None, 3\]\], expected \[\[3\]\] .*: psfleet batches"):
        front_of(linear, evaluate=lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(2))


def test_a_peer_lost_during_evaluation_is_no_failure_of_the_program() -> None:
    def lost(batch: Any) -> float:
        raise LostPeerError("ps 0 went away")

    front = front_of(linear, evaluate=lambda: tf.data.Dataset.from_tensor_slices((X, Y)))
    with pytest.raises(LostPeerError):
        front.evaluate({}, lost)


def lookup(batch: Any) -> tf.Tensor:
    initializer = tf.lookup.KeyValueTensorInitializer(["a"], [2.0])
    return v1.get_variable("w", []) * tf.lookup.StaticHashTable(initializer, 1.0).lookup(tf.constant("a"))


def of_bad_initial(batch: Any) -> tf.Tensor:
    """The initializer raises when it runs, and not when it is built."""
    del batch

    def initial() -> tf.Tensor:
        size = v1.placeholder_with_default(-1.0, [])
        with tf.control_dependencies([tf.debugging.Assert(size > 0, ["the size is not positive:", size])]):
            return tf.identity(size)

    return v1.get_variable("w", initializer=initial) * 1


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda batch: tf.reduce_sum(batch[0]), "no trainable parameters"),
        (lambda batch: 3.0, r"loss\(batch\) returned 3.0, expected a scalar float tensor"),
        (lambda batch: v1.get_variable("w", [2]) * 1, r"returned float32 of shape \(2,\), expected a scalar"),
        (lambda batch: tf.constant(1), r"returned int32 of shape \(\), expected a scalar float"),
        (lambda batch: 1 / 0, r"loss\(batch\) raised ZeroDivisionError"),
        (lambda batch: tf.Variable(1.0) * 1, "variable Variable is not made by tf.compat.v1.get_variable"),
        (lambda batch: v1.get_variable("w", [], tf.float64) * 1, "w is float64, expected float32"),
        (lambda batch: v1.get_variable("w", [], constraint=tf.nn.relu) * 1, "variable w has a constraint"),
        (lookup, "uses a lookup table; expected it in the data set"),
        (of_bad_initial, r"initializing the variables of loss\(batch\) raised InvalidArgumentError: .*not positive"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_told(loss: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        front_of(loss)
    assert "\n" not in str(caught.value)


def test_a_loss_that_asks_for_other_variables_when_called_again_is_told() -> None:
    names = iter(["first", "second"])
    front = front_of(lambda batch: v1.get_variable(next(names), []) * 1)
    with pytest.raises(ProgramError, match="gets variable second in its second call"):
        Stepper.of(front)
