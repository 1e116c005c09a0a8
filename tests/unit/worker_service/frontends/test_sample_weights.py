"""Sample weights and class weights change loss, gradients and metrics as in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import Stepper, sample_job
from support.rows import first_rows

from psfleet.errors import ProgramError
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import FrontEnd, front_end
from worker_service.frontends.sample_weights import SampleWeights

generator = np.random.default_rng(11)
X = generator.normal(size=(8, 5)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32)
WEIGHTS = np.array([0.5, 2.0, 0.0, 1.0, 3.0, 0.25, 1.5, 4.0], np.float32)
CLASS_WEIGHT = {0: 0.5, 1: 3.0, 3: 2.0}
"""Class 2 has none, and so 1."""
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DENSE = keras.losses.CategoricalCrossentropy(from_logits=True)


def one_output() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(4)])


def two_outputs() -> keras.Model:
    inputs = keras.Input((5,))
    outputs = {"label": layers.Dense(4, name="label")(inputs), "score": layers.Dense(1, name="score")(inputs)}
    return keras.Model(inputs, outputs)


TWO = {"label": LABELS, "score": X[:, :1]}
TWO_WEIGHTS = {"label": WEIGHTS, "score": WEIGHTS[::-1].copy()}
STYLES: dict[str, tuple[Callable[[], keras.Model], Any, Any, Any, Any]] = {
    "weights": (one_output, LABELS, SPARSE, WEIGHTS, None),
    "weights_by_output": (two_outputs, TWO, {"label": SPARSE, "score": "mse"}, TWO_WEIGHTS, None),
    "class_numbers": (one_output, LABELS, SPARSE, None, CLASS_WEIGHT),
    "class_columns": (one_output, LABELS[:, None].astype(np.float32), SPARSE, None, CLASS_WEIGHT),
    "one_hot_rows": (one_output, np.eye(4, dtype=np.float32)[LABELS], DENSE, None, CLASS_WEIGHT),
}
"""Model, labels, loss, sample weights, class weights."""


def program_of(style: str, **fields: Any) -> KerasProgram:
    model, y, loss, weights, class_weight = STYLES[style]
    examples = (X, y) if weights is None else (X, y, weights)
    data = tf.data.Dataset.from_tensor_slices(examples)
    metrics = {"label": ["accuracy"], "score": ["mae"]} if isinstance(y, dict) else ["accuracy"]
    defaults = {"model": model, "loss": loss, "class_weight": class_weight, "train": lambda shard, shards: data}
    defaults |= {"metrics": metrics, "weighted_metrics": metrics, "evaluate": lambda: data}
    return KerasProgram(**{**defaults, **fields})


def front_of(style: str, **fields: Any) -> FrontEnd:
    return front_end(program_of(style, **fields), sample_job(batch_size=8), 1, 0)


def compiled(style: str) -> keras.Model:
    """The same model, to be trained by Keras itself with plain descent at rate 1."""
    program = program_of(style)
    model = built_model(program, sample_job())
    model.compile(
        keras.optimizers.SGD(1.0),
        loss=program.loss,
        metrics=program.metrics,
        weighted_metrics=program.weighted_metrics,
        run_eagerly=True,
    )
    return model


@pytest.mark.parametrize("style", first_rows(STYLES, 3))
def test_loss_and_gradients_are_those_of_keras_fit(style: str) -> None:
    _, y, _, _, class_weight = STYLES[style]
    model = compiled(style)
    unweighted = model.evaluate(X, y, batch_size=8, return_dict=True, verbose=0)["loss"]
    before = [variable.numpy() for variable in model.trainable_variables]
    data = program_of(style).train(0, 1).batch(8)
    history = model.fit(data, class_weight=class_weight, verbose=0, shuffle=False)
    expected = [start - variable.numpy() for start, variable in zip(before, model.trainable_variables, strict=True)]

    stepper = Stepper.of(front_of(style))
    batch = tf.nest.flatten(next(data.as_numpy_iterator()))
    assert float(stepper.run(stepper.graph.loss, batch)) == pytest.approx(history.history["loss"][0], abs=1e-5)
    for gradient, wanted in zip(stepper.gradients(batch).values(), expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-5)
    assert unweighted != pytest.approx(history.history["loss"][0], abs=1e-3), "the weights have no effect"


@pytest.mark.parametrize("style", ["weights", "weights_by_output", "class_numbers"])
def test_evaluated_metrics_are_those_of_keras_evaluate(style: str) -> None:
    front = front_of(style)
    metrics = front.evaluate(front.initial_values(), lambda batch: 1 / 0)
    expected = compiled(style).evaluate(program_of(style).train(0, 1).batch(8), return_dict=True, verbose=0)
    assert metrics == pytest.approx(expected, abs=1e-5)
    assert any("weighted" in name for name in metrics)


def test_a_model_that_takes_its_input_shape_from_the_data_trains_with_weights() -> None:
    front = front_of("weights", model=lambda: keras.Sequential([layers.Dense(4)]))
    assert [spec.shape for spec in front.parameters] == [(5, 4), (4,)]


@pytest.mark.parametrize("y", [LABELS[:, None].astype(np.float32), np.eye(4, dtype=np.float32)[LABELS]])
def test_class_weights_fit_labels_of_unknown_shape(y: np.ndarray) -> None:
    """A data set of a Python generator may leave open how many columns there are."""
    spec = tf.TensorSpec([None, None], tf.float32)
    weights = SampleWeights("program:build", CLASS_WEIGHT, (spec, spec))
    of_labels = tf.function(lambda labels: weights.unpacked((labels, labels))[2], input_signature=[spec])
    assert of_labels(y).numpy().tolist() == [CLASS_WEIGHT.get(label, 1.0) for label in LABELS.tolist()]


@pytest.mark.parametrize(
    ("style", "fields", "message"),
    [
        ("weights", {"class_weight": CLASS_WEIGHT}, "examples have a sample_weight, expected either that or class"),
        ("weights_by_output", {"class_weight": CLASS_WEIGHT}, "either that or class_weight"),
        (
            "weights_by_output",
            {
                "class_weight": CLASS_WEIGHT,
                "train": lambda shard, shards: tf.data.Dataset.from_tensor_slices((X, TWO)),
            },
            "y is several tensors, expected a single output",
        ),
        (
            "weights",
            {"train": lambda shard, shards: tf.data.Dataset.from_tensor_slices((X, LABELS, WEIGHTS, WEIGHTS))},
            r"expected \(x, y\) or \(x, y, sample_weight\)",
        ),
        ("class_numbers", {"class_weight": {"cat": 2.0}}, "expected a dict of class numbers from 0 to weights >= 0"),
        ("class_numbers", {"class_weight": {0: -1.0}}, "expected a dict of class numbers from 0 to weights >= 0"),
    ],
)
def test_weights_that_do_not_fit_the_examples_are_refused(style: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        front_of(style, **fields)
