"""Towers on virtual CPU devices: the gradient of a batch that is divided over them is that of the whole batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers
from support.graph_fleet import STEP_SECS, graph_fleet
from support.program_samples import TOWER_STRIDE, Stepper, sample_job
from support.rows import first_rows

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.frontends import FrontEnd, front_end

SIZE, LENGTH, WORDS = 6, 5, 7
CPUS = ("/device:CPU:0", "/device:CPU:1")
generator = np.random.default_rng(4)
X = generator.normal(size=(SIZE, 4)).astype(np.float32)
Y = generator.normal(size=(SIZE, 1)).astype(np.float32)
WEIGHTS = generator.uniform(0.1, 3, size=SIZE).astype(np.float32)
MASK = np.array([1, 0, 0, 1, 1, 1], np.float32)
TEXTS = np.array([[at + 1 if at < length else 0 for at in range(LENGTH)] for length in (5, 1, 2, 4, 3, 3)], np.int32)
TAGS = generator.normal(size=(SIZE, LENGTH, 1)).astype(np.float32)

GRAPH_DATA = tf.data.Dataset.from_tensor_slices((X, Y, MASK))


def front_of(program: Any) -> FrontEnd:
    return front_end(program, sample_job(batch_size=SIZE), 1, 0)


def keras_program(model: Callable[[], keras.Model], loss: Any, *data: Any, **fields: Any) -> KerasProgram:
    examples = tf.data.Dataset.from_tensor_slices(data)
    return KerasProgram(model=model, loss=loss, train=lambda shard, shards: examples, **fields)


def dense() -> keras.Model:
    hidden = layers.Dense(3, "tanh", kernel_regularizer="l2", activity_regularizer="l1")
    return keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1)])


def tagger() -> keras.Model:
    """Its loss has a mask: that of the words of a text which are there."""
    embedding = layers.Embedding(WORDS, 3, mask_zero=True)
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), embedding, layers.Dense(1, "tanh")])


def two_outputs() -> keras.Model:
    """Each with a loss that is divided by something else."""
    texts = keras.Input((LENGTH,), dtype="int32")
    words = layers.Embedding(WORDS, 3, mask_zero=True)(texts)
    first = layers.Dense(1, "tanh", name="first")(words)
    return keras.Model(texts, [first, layers.Dense(1, name="second")(layers.GlobalAveragePooling1D()(words))])


def graph_program(loss_weight: Callable[[Any], tf.Tensor] | None, is_masked: bool) -> GraphProgram:
    def loss(batch: Any) -> tf.Tensor:
        x, y, mask = batch
        weights = mask if is_masked else tf.ones_like(mask)
        error = tf.square(tf.tanh(x @ tf.compat.v1.get_variable("w", [4, 1])) - y)[:, 0]
        return tf.reduce_sum(error * weights) / tf.reduce_sum(weights)

    return GraphProgram(loss=loss, loss_weight=loss_weight, train=lambda shard, shards: GRAPH_DATA)


def normalized() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.BatchNormalization(momentum=0.5)])


def dropping() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dropout(0.5), layers.Dense(1, kernel_initializer="ones")])


def outputs(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """A loss: the model's outputs themselves."""
    del y
    return y_pred


def looping(batch: Any) -> tf.Tensor:
    """A loss with a loop, a part of which is on the first CPU in every tower, as what has no kernel for a GPU is."""
    x, y, _ = batch
    w = tf.compat.v1.get_variable("w", [4, 1])

    def add(at: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("/device:CPU:0"):
            product = tf.tanh(x @ w)
        return at + 1, total + product

    _, total = v1.while_loop(lambda at, _: at < 3, add, [0, tf.zeros_like(y)])
    return tf.reduce_mean(tf.square(total - y))


class Branching(layers.Layer):
    """A branch of TensorFlow."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """See `keras.Layer`."""
        return tf.cond(tf.reduce_sum(x) > 1e9, lambda: x, lambda: tf.sinh(x))


def recurrent() -> keras.Model:
    return keras.Sequential([keras.Input((4, 1)), layers.LSTM(2), Branching(), layers.Dense(1)])


def mse(reduction: str) -> keras.losses.Loss:
    return keras.losses.MeanSquaredError(reduction=reduction)


PROGRAMS: dict[str, tuple[Any, list[np.ndarray]]] = {
    "mean": (keras_program(dense, "mse", X, Y, metrics=["mae"]), [X, Y]),
    "mask": (keras_program(tagger, "mse", TEXTS, TAGS, weighted_metrics=["mae"]), [TEXTS, TAGS]),
    "graph mask": (graph_program(lambda batch: tf.reduce_sum(batch[2]), True), [X, Y, MASK]),
    "graph mean": (graph_program(None, False), [X, Y, MASK]),
    "graph loop": (GraphProgram(loss=looping, train=lambda shard, shards: GRAPH_DATA), [X, Y, MASK]),
    "sum": (keras_program(dense, mse("sum"), X, Y, metrics=["mae"]), [X, Y]),
    "weights": (keras_program(dense, "mse", X, Y, WEIGHTS, weighted_metrics=["mae"]), [X, Y, WEIGHTS]),
    "divided by weights": (
        keras_program(dense, mse("mean_with_sample_weight"), X, Y, WEIGHTS, weighted_metrics=["mae"]),
        [X, Y, WEIGHTS],
    ),
    "two outputs": (
        keras_program(two_outputs, ["mse", mse("mean_with_sample_weight")], TEXTS, (TAGS, Y), metrics=["mae", "mse"]),
        [TEXTS, TAGS, Y],
    ),
    "recurrent": (keras_program(recurrent, "mse", X[..., None], Y), [X[..., None], Y]),
    "mask divided by its sum": (keras_program(tagger, mse("mean_with_sample_weight"), TEXTS, TAGS), [TEXTS, TAGS]),
}


@pytest.fixture(autouse=True)
def _control_flow_of_a_worker() -> None:
    v1.disable_control_flow_v2()


@pytest.mark.parametrize(("name", "towers"), first_rows([(name, towers) for towers in (2, 3) for name in PROGRAMS], 3))
def test_loss_gradient_and_metrics_are_those_of_one_device(name: str, towers: int) -> None:
    program, batch = PROGRAMS[name]
    front = front_of(program)
    one, several = Stepper.of(front), Stepper.of(front, towers=towers)
    fetches = [[each.graph.loss, *each.graph.gradients, *each.graph.new_state] for each in (one, several)]
    # Metrics that have counted other batches before: those are not counted again in each tower.
    values = front.initial_values()
    values |= {spec.name: np.full(spec.shape, 3, spec.dtype) for spec in front.state if not spec.is_saved}
    expected, found = one.run(fetches[0], batch, values, 1), several.run(fetches[1], batch, values, 1)
    for own, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, own, rtol=1e-5, atol=1e-6)
    assert max(np.abs(gradient).max() for gradient in expected[1 : 1 + len(front.parameters)]) > 1e-3


def test_moving_averages_are_means_over_the_towers() -> None:
    """As under MirroredStrategy, which averages the variables of a BatchNormalization over its replicas."""
    front = front_of(keras_program(normalized, outputs, X, X))
    several = Stepper.of(front, towers=2)
    found = several.run(several.graph.new_state, [X, X])
    halves = np.split(X.astype(np.float64), 2)
    expected = {
        "batch_normalization/moving_mean": 0.5 * X.mean(axis=0),
        "batch_normalization/moving_variance": 0.5 + 0.5 * np.mean([half.var(axis=0) for half in halves], axis=0),
    }
    named = {spec.name.partition("/")[2]: value for spec, value in zip(front.state, found, strict=True)}
    for name, value in expected.items():
        np.testing.assert_allclose(named[name], value, rtol=1e-5, err_msg=str(sorted(named)))


def test_each_tower_draws_random_numbers_of_its_own() -> None:
    half = X[: SIZE // 2]
    program = keras_program(dropping, outputs, X, X)
    one = Stepper.of(front_end(program, sample_job(batch_size=len(half)), 1, 0))
    several = Stepper.of(front_of(program), towers=2)
    of_first = one.run(one.graph.loss, [half, half])
    of_both = several.run(several.graph.loss, [np.tile(half, (2, 1))] * 2)
    assert abs(of_both - of_first) > 1e-3, "both have dropped the same"
    of_second = Stepper.of(one.front.of_worker(TOWER_STRIDE))
    expected = (of_first + of_second.run(of_second.graph.loss, [half, half])) / 2
    assert of_both == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("program", ["mean", "graph mean"])
def test_a_session_makes_accumulated_and_clipped_steps_as_one_device_makes_them(program: str) -> None:
    batch = [np.concatenate([array, array / 2]) for array in PROGRAMS[program][1]]
    found = []
    for devices in ({}, {"replicas": 2, "virtual_cpus": 2}):
        sections: dict[str, Any] = {
            "optimizer": {"name": "sgd", "learning_rate": 0.5, "clip_norm": 0.5},
            "train": {"steps": 20, "batch_size": SIZE, "accumulate": 2, "seed": 7},
            "device": devices,
        }
        front = front_of(PROGRAMS[program][0])
        with graph_fleet(1, front, front.initial_values(), **sections) as fleet, fleet.worker(0) as worker:
            for step in range(2):
                pushed = worker.threads.submit(worker.session.train, batch, step, step)
                fleet.advance()
                loss, _ = pushed.result(STEP_SECS)
            found.append([loss, worker.session.parameters()])
    (loss, weights), (of_towers, weights_of_towers) = found
    assert of_towers == pytest.approx(loss, abs=1e-5)
    np.testing.assert_allclose(weights_of_towers, weights, rtol=0, atol=1e-5)


KINDS = [("graph mean", {"MatMul", "TanhGrad"}), ("mean", {"MatMul"}), ("recurrent", {"LoopCond", "Sinh", "Cosh"})]


@pytest.mark.parametrize(("name", "kinds"), first_rows(KINDS))
def test_every_operation_of_a_tower_is_on_its_device(name: str, kinds: set[str]) -> None:
    """Forward and backward, in the graphs that TensorFlow runs."""
    program, batch = PROGRAMS[name]
    found = []
    for towers in (1, 2):
        step = Stepper.of(front_of(program), towers=towers)
        options = v1.RunOptions(output_partition_graphs=True)
        metadata = v1.RunMetadata()
        step.run([step.graph.loss, step.graph.gradients], batch, options=options, run_metadata=metadata)
        nodes = [node for graph in metadata.partition_graphs for node in graph.node if node.name.startswith("program")]
        assert nodes
        # With oneDNN on, some have names of its own.
        kinds_of = [(node.device, re.sub("^_Mkl(Native)?", "", node.op)) for node in nodes]
        found.append({device: Counter(kind for at, kind in kinds_of if at.endswith(device)) for device in CPUS})
    (one, nothing), (first, second) = (each.values() for each in found)
    assert not nothing
    for kind in kinds:
        assert first[kind] == second[kind] == one[kind] > 0
    assert first.total() > 0 < second.total()


def test_what_a_tower_cannot_share_is_refused() -> None:
    front = front_of(graph_program(lambda batch: batch[2], True))
    with pytest.raises(ProgramError, match=r"loss_weight\(batch\) has shape \(None,\), expected a scalar"):
        Stepper.of(front, towers=2)
