"""A seed generator that a model shares with a layer of it is one variable."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.checkpoint.keras_names import named_variables
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import front_end

X, Y = np.ones([8, 5], np.float32), np.ones([8, 1], np.float32)


class Noise(layers.Layer):
    """Adds noise from the generator of its model."""

    def __init__(self, seeds: Any) -> None:
        super().__init__()
        self.seeds = seeds

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)


class Noisy(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.noise, self.dense = Noise(self.seeds), layers.Dense(1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.dense(self.noise(x))


PROGRAM = KerasProgram(model=Noisy, loss="mse", train=lambda shard, shards: tf.data.Dataset.from_tensor_slices((X, Y)))


def test_the_state_has_it_once_under_the_name_of_exports() -> None:
    front = front_end(PROGRAM, sample_job(), 1, 0)
    assert [spec.name.rpartition("/")[2] for spec in front.state] == ["seed_generator_state"]
    names = [spec.name for spec in (*front.parameters, *front.state, *front.frozen)]
    assert sorted(names) == sorted(named_variables(built_model(PROGRAM, sample_job())))
