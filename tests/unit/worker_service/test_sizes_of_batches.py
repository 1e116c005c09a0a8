"""A model that its program has not built takes examples of all sizes: in training, exported, and served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.checkpoint.keras_names import named_variables
from psfleet.job.job import Job, parse_job
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model, first_batch
from worker_service.keras_export import compared, inputs_of, saved_model
from worker_service.predictions.keras_model import KerasModel
from worker_service.predictions.names import PREDICTIONS, by_name
from worker_service.predictions.weights import Weights

LENGTHS = (2, 5, 3, 4)
"""Of the examples of the first batch."""


def train(shard: int, shards: int) -> tf.data.Dataset:
    def made() -> object:
        yield from ((np.full(length, length, np.int32), np.int32(length % 2)) for length in (*LENGTHS, 9))

    specs = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
    return tf.data.Dataset.from_generator(made, output_signature=specs)


def job() -> Job:
    return parse_job({**sample_job().model_dump(mode="json"), "input": {"pad": True}})


def program(model: Callable[[], keras.Model]) -> KerasProgram:
    return KerasProgram(model=model, loss="mse", train=train)


def parts() -> list[layers.Layer]:
    return [layers.Embedding(20, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(2)]


def sequential() -> keras.Model:
    return keras.Sequential(parts())


def with_input() -> keras.Model:
    return keras.Sequential([keras.Input([None]), *parts()])


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.parts = parts()

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def of_one_size() -> keras.Model:
    """Its last layer has to know the length."""
    return keras.Sequential([layers.Embedding(20, 4), layers.Flatten(), layers.Dense(2)])


def tokens(length: int) -> np.ndarray:
    return np.arange(2 * length, dtype=np.int32).reshape(2, length) % 20


def test_a_sequential_model_is_built_for_all_sizes_with_the_weights_that_its_input_would_give_it() -> None:
    built, expected = built_model(program(sequential), job()), built_model(program(with_input), job())
    assert tuple(built.inputs[0].shape) == (None, None)
    for one, other in zip(built.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert named_variables(built).keys() == named_variables(expected).keys()


def test_a_sequential_model_that_needs_a_size_is_built_on_the_first_batch() -> None:
    built = built_model(program(of_one_size), job())
    assert built.get_weights()[1].shape == (4 * max(LENGTHS), 2)
    first, again = (built_model(program(of_one_size), job()).get_weights()[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("model", [sequential, Subclassed])
def test_an_exported_model_takes_other_sizes_than_those_of_the_first_batch(
    tmp_path: Path, model: Callable[[], keras.Model]
) -> None:
    built = built_model(program(model), job())
    batch, spec = first_batch(program(model), job())
    loaded = saved_model(built, spec[0], tmp_path, job())
    for x in (batch[0], tf.constant(tokens(1)), tf.constant(tokens(12))):
        compared(built, loaded, inputs_of(built, x), job())


@pytest.mark.parametrize("model", [sequential, Subclassed])
def test_a_served_model_says_that_it_takes_all_sizes(model: Callable[[], keras.Model]) -> None:
    values = {name: each.numpy() for name, each in named_variables(built_model(program(model), job())).items()}
    named = partial(by_name, only=PREDICTIONS)
    predictor = KerasModel(program(model), job(), Weights(0, values, "initial"), None, named)
    assert predictor.features.shape.as_list() == [None, None]
    dtype = predictor.features.dtype.as_numpy_dtype
    (short,), (long,) = (predictor.predict([tokens(length).astype(dtype)]).values() for length in (1, 12))
    assert short.shape == long.shape == (2, 2)


def test_a_tensor_of_unknown_rank_has_the_sizes_of_the_first_batch() -> None:
    def unknown(shard: int, shards: int) -> tf.data.Dataset:
        made = tf.data.Dataset.range(8)
        return made.map(lambda x: (tf.numpy_function(lambda y: np.full(3, y, np.float32), [x], tf.float32), x))

    batch, spec = first_batch(KerasProgram(model=Subclassed, loss="mse", train=unknown), sample_job())
    assert batch[0].shape == (4, 3)
    assert spec[0].shape.as_list() == [None, 3]
