"""SavedModels of Keras models: inputs of any types and structure, and nothing random."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.errors import ProgramError
from psfleet.tf.batching import of_all_batches
from worker_service import keras_export

A = np.arange(8, dtype=np.float64).reshape(4, 2)
B = np.array([1, 2, 3, 4])
KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def _specs(batch: Any) -> Any:
    return tf.nest.map_structure(of_all_batches, batch)


def _layers() -> tuple[keras.layers.Layer, keras.layers.Layer]:
    return (
        keras.layers.Dense(3, kernel_initializer=lambda *args, **kwargs: keras.ops.convert_to_tensor(KERNEL)),
        keras.layers.Embedding(9, 3, embeddings_initializer="ones"),
    )


def _functional(is_dict: bool) -> keras.Model:
    a, b = keras.Input([2], name="a"), keras.Input([], dtype="int32", name="b")
    dense, rows = _layers()
    return keras.Model({"b": b, "a": a} if is_dict else [a, b], dense(a) + rows(b))


class _Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.dense, self.rows = _layers()

    def call(self, x: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.dense(x["a"]) + self.rows(x["b"])


@keras.saving.register_keras_serializable()
class Joined(keras.layers.Layer):
    """Takes `a` and `b` in a dict or a tuple."""

    def call(self, x: Any) -> tf.Tensor:
        a, b = tf.nest.flatten(x)
        return keras.ops.concatenate([a, keras.ops.cast(b, "float32")[:, None]], 1)


@pytest.mark.parametrize(
    ("model", "x"),
    first_rows(
        [
            (_functional(is_dict=False), (A, B)),
            (_Subclassed(), {"a": A.astype(np.float32), "b": B}),
            (_functional(is_dict=False), {"b": B, "a": A}),
            (_functional(is_dict=True), {"a": A, "b": B}),
        ],
        2,
    ),
)
def test_a_model_with_two_inputs_is_served_by_their_names(tmp_path: Path, model: keras.Model, x: Any) -> None:
    batch = tf.nest.map_structure(tf.constant, x)
    model(batch)
    given = keras_export.inputs_of(model, batch)
    save = keras_export.saved_model(model, _specs(batch), tmp_path, sample_job())
    assert keras_export.compared(model, save, given, sample_job()) == "predictions of 4 examples verified"
    served = tf.saved_model.load(tmp_path).signatures["serving_default"]
    specs = served.structured_input_signature[1]
    (found,) = served(a=tf.constant(A, tf.float32), b=tf.cast(B, specs["b"].dtype)).values()
    np.testing.assert_allclose(found, A @ KERNEL + 1, rtol=1e-6)


@pytest.mark.parametrize("is_dict", [True, False])
@pytest.mark.parametrize("save", [keras_export.saved_model, keras_export.keras_file])
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, which loads a model
def test_a_sequential_model_whose_first_layer_takes_several_tensors_is_exported(
    tmp_path: Path, save: Callable[..., Any], is_dict: bool
) -> None:
    model, a = keras.Sequential([Joined(), keras.layers.Dense(3)]), A.astype(np.float32)
    batch = tf.nest.map_structure(tf.constant, {"a": a, "b": B} if is_dict else (a, B))
    model(batch)
    assert keras_export.inputs_of(model, batch) is batch
    loaded = save(model, _specs(batch), tmp_path, sample_job())
    assert keras_export.compared(model, loaded, batch, sample_job()) == "predictions of 4 examples verified"


def test_layers_that_augment_in_training_are_the_identity_in_an_exported_model(tmp_path: Path) -> None:
    layers = [keras.Input([2, 3]), keras.layers.RandomFlip("horizontal"), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.GaussianNoise(1.0)])
    x = tf.constant(np.arange(60, dtype=np.float32).reshape(10, 2, 3))
    loaded = keras_export.saved_model(model, _specs(x), tmp_path, sample_job())
    np.testing.assert_array_equal(loaded(x), x)
    signature = tf.saved_model.load(tmp_path).signatures["serving_default"]
    np.testing.assert_array_equal(next(iter(signature(x).values())), x)


@pytest.mark.parametrize(
    ("policy", "error", "refused"),
    [("float32", 1e-6, False), ("float32", 0.01, True), ("mixed_bfloat16", 0.01, False), ("mixed_bfloat16", 0.1, True)],
)
def test_predictions_are_compared_with_the_precision_of_the_layers(policy: str, error: float, refused: bool) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3, dtype=policy), keras.layers.Identity()])
    x = tf.constant(A, tf.float32)
    with pytest.raises(ProgramError, match="differ by up to") if refused else nullcontext():
        keras_export.compared(model, lambda inputs: model(inputs) + error, x, sample_job())


def test_inputs_of_another_number_than_those_of_the_model_stay_as_they_are() -> None:
    x = (tf.constant(A),)
    assert keras_export.inputs_of(_functional(is_dict=False), x) is x
