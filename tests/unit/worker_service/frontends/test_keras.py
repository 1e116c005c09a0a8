"""Keras models give the same loss, gradient and state in a worker's graph as in eager Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.keras_models import MODELS, Subclassed
from support.program_samples import Stepper, sample_job
from support.rows import first_rows

from psfleet.errors import ProgramError
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import FrontEnd, front_end


def program_of(name: str, **fields: Any) -> KerasProgram:
    model, x, y, loss = MODELS[name]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    defaults = {"model": model, "loss": loss, "train": lambda shard, shards: data.shard(shards, shard)}
    return KerasProgram(**{**defaults, **fields})


def front_of(name: str, index: int = 0, num_shards: int = 1, **fields: Any) -> FrontEnd:
    return front_end(program_of(name, **fields), sample_job(), num_shards, index)


@functools.cache
def stepper_of(name: str, index: int = 0) -> Stepper:
    """A worker's step of the model as it is, which tests share: it has no state of its own."""
    return Stepper.of(front_of(name, index))


def batch_of(name: str, number: int = 0) -> Any:
    rows = slice(4 * number, 4 * number + 4)
    return tf.nest.map_structure(lambda array: array[rows], MODELS[name][1:3])


def eager_step(name: str) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Loss, gradients and non-trainable values by path after one eager training step without its update."""
    program = program_of(name)
    model = built_model(program, sample_job())
    model.compile(loss=program.loss, jit_compile=False)
    x, y = tf.nest.map_structure(tf.constant, batch_of(name))
    with tf.GradientTape() as tape:
        takes_training = not isinstance(model, Subclassed)
        y_pred = model(x, training=True) if takes_training else model(x)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred)
    variables = [variable.value for variable in model.trainable_variables]
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    paths = [variable.path for variable in model.trainable_variables]
    dense = {path: tf.convert_to_tensor(gradient).numpy() for path, gradient in zip(paths, gradients, strict=True)}
    return float(loss), dense, {variable.path: variable.numpy() for variable in model.non_trainable_variables}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "several"])  # that is in test_keras_styles
def test_loss_gradient_and_state_are_those_of_eager_keras(name: str) -> None:
    loss, gradients, state = eager_step(name)
    stepper = stepper_of(name)
    batch = tf.nest.flatten(batch_of(name))
    got_loss, got_state = stepper.run([stepper.graph.loss, stepper.graph.new_state], batch)
    got = stepper.gradients(batch)
    assert got_loss == pytest.approx(loss, rel=1e-5)
    assert list(got) == list(gradients)
    for path, gradient in gradients.items():
        np.testing.assert_allclose(got[path], gradient, rtol=1e-4, atol=1e-6, err_msg=path)
    for spec, value in zip(stepper.layout.state.specs, got_state, strict=True):
        np.testing.assert_allclose(value, state[spec.name], rtol=1e-5, err_msg=spec.name)
        assert value.dtype == spec.dtype


def test_what_the_forward_pass_changes_is_state_and_the_rest_is_frozen() -> None:
    model = stepper_of("convolution").front
    assert [spec.name.rsplit("/", 1)[1] for spec in model.state] == [
        "moving_mean",
        "moving_variance",
        "seed_generator_state",
        "seed_generator_state",
    ]
    assert model.frozen == ()
    frozen = stepper_of("partly_frozen").front
    assert len(frozen.frozen) == 6
    assert [spec.dtype for spec in frozen.state] == ["int64", "int64"]


def test_a_model_whose_first_trace_creates_variables_lists_its_state_once() -> None:
    """Metrics of named outputs are created in the first trace, after which TensorFlow traces again."""
    front = front_of("several", metrics={"label": "accuracy"})
    assert [spec.name.rsplit("/", 1)[1] for spec in front.state if spec.is_saved] == [
        "moving_mean",
        "moving_variance",
        "seed_generator_state",
    ]


def with_policy(policy: str) -> Callable[[], keras.Model]:
    def model() -> keras.Model:
        hidden = layers.Dense(4, "relu", dtype=policy)
        return keras.Sequential([keras.Input((5,)), keras.Sequential([hidden]), layers.Dense(3)])

    return model


def test_float16_is_refused_by_name_and_bfloat16_gives_float32_gradients() -> None:
    with pytest.raises(ProgramError, match="computes in float16, for which psfleet does not scale the loss"):
        front_of("mlp", model=with_policy("mixed_float16"))
    stepper = Stepper.of(front_of("mlp", model=with_policy("mixed_bfloat16")))
    exact = Stepper.of(front_of("mlp", model=with_policy("float32")))
    batch = tf.nest.flatten(batch_of("mlp"))
    pairs = zip(stepper.gradients(batch).values(), exact.gradients(batch).values(), strict=True)
    for gradient, expected in pairs:
        assert gradient.dtype == np.float32
        np.testing.assert_allclose(gradient, expected, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", first_rows(["convolution", "recurrent"]))
def test_the_random_numbers_of_a_step_follow_from_worker_and_batch_number(name: str) -> None:
    """A process that repeats a step after a restart reads the state that other steps have left on the ps."""
    batch = tf.nest.flatten(batch_of(name))
    initial = stepper_of(name).front.initial_values()
    seeds = {key: np.array([value[0], 77]) for key, value in initial.items() if key.endswith("seed_generator_state")}
    moved = {**initial, **seeds}
    losses = {}
    for index in (0, 2):
        first = stepper_of(name, index)
        second = Stepper.of(front_of(name, index)) if index else first
        for number in (5, 0, 6):
            losses[index, number] = float(first.run(first.graph.loss, batch, initial, number))
        for number in (6, 5, 0):
            again = float(second.run(second.graph.loss, batch, moved, number))
            assert again == losses[index, number], f"worker {index}, batch {number}"
    # Two small dropout masks can be equal.
    assert len(set(losses.values())) >= len(losses) - 2, losses


def test_every_worker_leaves_the_seeds_of_the_chief() -> None:
    batch = tf.nest.flatten(batch_of("convolution"))
    steppers = [stepper_of("convolution", index) for index in (0, 2)]
    states = [stepper.run(stepper.graph.new_state, batch, number=7) for stepper in steppers]
    for of_chief, of_worker in zip(*states, strict=True):
        if of_chief.dtype == np.int64:
            np.testing.assert_array_equal(of_chief, of_worker)
            assert of_chief[1] > 0, "each step has drawn random numbers"


def test_evaluation_uses_the_given_values_and_all_examples() -> None:
    _, x, y, _ = MODELS["mlp"]
    front = front_of("mlp", metrics=["accuracy"], evaluate=lambda: tf.data.Dataset.from_tensor_slices((x, y)).take(10))
    values = {name: value * 0.5 for name, value in front.initial_values().items()}
    metrics = front.evaluate(values, lambda batch: 1 / 0)
    kernels = [values[spec.name] for spec in front.parameters]
    logits = np.maximum(x[:10] @ kernels[0] + kernels[1], 0) @ kernels[2] + kernels[3]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert metrics["loss"] == pytest.approx(-np.log(probabilities[np.arange(10), y[:10]]).mean(), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(axis=1) == y[:10]).mean())
    assert set(map(type, metrics.values())) == {float}


def test_evaluation_data_may_have_none_as_sample_weights() -> None:
    """As Keras takes them; the specification of None has no shape."""
    _, x, y, _ = MODELS["mlp"]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    plain, unweighted = (
        front_of("mlp", evaluate=lambda data=data: data) for data in (data, data.map(lambda x, y: (x, y, None)))
    )
    found = [front.evaluate(plain.initial_values(), lambda batch: 1 / 0)["loss"] for front in (plain, unweighted)]
    assert found[0] == pytest.approx(found[1])


def test_evaluation_data_of_unknown_length_end_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Those of a generator, for example. Keras warns of an interrupted training that should have more batches."""
    _, x, y, _ = MODELS["mlp"]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    known, unknown = (
        front_of("mlp", evaluate=lambda data=data: data) for data in (data, data.filter(lambda x, y: True))
    )
    found = [front.evaluate(known.initial_values(), lambda batch: 1 / 0)["loss"] for front in (known, unknown)]
    assert found[0] == pytest.approx(found[1])
    assert [str(each.message) for each in recwarn if "ran out of data" in str(each.message)] == []


def test_a_program_without_evaluation_data_has_no_metrics() -> None:
    front = stepper_of("mlp").front
    assert front.evaluate(front.initial_values(), lambda batch: 1 / 0) == {}


@keras.saving.register_keras_serializable()
class GlobalNoise(layers.Layer):
    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.random.normal((4, 1))


def followed_by(layer: layers.Layer, **dense: Any) -> Callable[[], keras.Model]:
    return lambda: keras.Sequential([keras.Input((5,)), layers.Dense(1, **dense), layer])


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return {}


def misshapen(y_true: Any, y_pred: Any) -> Any:
    raise ValueError("of no such shape")


def stateful() -> keras.Model:
    return keras.Sequential([keras.Input((5, 1), batch_size=4), layers.GRU(3, stateful=True), layers.Dense(1)])


def batches(shard_index: int, num_shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(MODELS["regularized"][1:3]).batch(2)


class Lines(keras.Model):
    """A model that is not built before its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = layers.Conv1D(2, 3)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.convolution(x[..., None])[:, 0]


class Raising(layers.Layer):
    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            raise ValueError("boom")
        return x


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": lambda: keras.Sequential([keras.Input((5,)), layers.Flatten()])}, "no trainable parameters"),
        ({"model": followed_by(layers.Flatten(), dtype="float64")}, "dense/kernel is float64, expected float32"),
        ({"model": followed_by(layers.Flatten(), kernel_constraint="non_neg")}, "dense/kernel has a constraint"),
        ({"model": followed_by(layers.Flatten(), dtype="float8_from_float32")}, "is overwritten with its gradient"),
        ({"model": followed_by(GlobalNoise())}, "variable .*seed_generator_state.*, which is not a variable of"),
        ({"model": lambda: OwnStep([keras.Input((5,)), layers.Dense(1)])}, "overrides train_step"),
        ({"model": lambda: followed_by(Raising())()}, "the model's forward pass or loss raised ValueError"),
        (
            {"model": lambda: followed_by(layers.SpectralNormalization(layers.Dense(1)))()},
            "assigns trainable variable .*kernel, which only the optimizer may change",
        ),
        ({"model": stateful}, "layer gru is stateful"),
        ({"loss": "no_such_loss"}, "raised ValueError: Could not interpret loss"),
        ({"model": followed_by(layers.Flatten()), "loss": None}, "raised ValueError: No loss to compute"),
        (
            {"model": followed_by(layers.Flatten()), "loss": keras.losses.MeanSquaredError(reduction=None)},
            r"the loss has shape \[4\], expected a scalar",
        ),
        ({"train": lambda shard, shards: tf.data.Dataset.range(9)}, r"expected \(x, y\)"),
        (
            {"train": batches},
            r"x of shape \[\[None, 5\]\], expected \[\[5\]\]; if the data set yields batches, remove its batch\(\)",
        ),
        ({"train": batches, "model": Lines}, r"remove its batch\(\): psfleet batches"),
        (
            {"model": followed_by(layers.Reshape((7,)))},
            r"ValueError: The total size of the tensor must be unchanged\..* \(in Reshape.call\(\)\)$",
        ),
        ({"evaluate": lambda: tf.data.Dataset.range(0)}, "the evaluation data are empty"),
        (
            {"evaluate": lambda: batches(0, 1)},
            r"of evaluate\(\) have x of shape \[\[None, 5\]\], expected \[\[5\]\] as in training; .* batch\(\)",
        ),
        ({"metrics": ["acuracy"]}, "KerasProgram.metrics has 'acuracy', .*of Keras; did you mean 'accuracy'"),
        (
            {"metrics": ["mse"], "weighted_metrics": {"dense": ["AUC", "no_such_metric"]}},
            "KerasProgram.weighted_metrics has 'no_such_metric', expected the name of a metric of Keras$",
        ),
        ({"metrics": [misshapen]}, "a metric of KerasProgram raised ValueError: of no such shape"),
    ],
)
def test_a_program_that_cannot_be_trained_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        front_of("regularized", **fields)
    assert "\n" not in str(caught.value)


def test_a_model_that_the_program_compiles_is_trained_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Its optimizer would otherwise seem to be used."""

    def compiled() -> keras.Model:
        model = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
        model.compile(keras.optimizers.Nadam())
        return model

    front_of("mlp", index=1, num_shards=2, model=compiled)
    assert "compiles" not in caplog.text, "one worker says it"
    front_of("mlp", model=compiled)
    assert "optimizer Nadam: that is not used, because each ps applies the job's optimizer, sgd" in caplog.text
