"""Examples are compared with the inputs of a Keras model by their rank, where both are known."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import KerasProgram
from worker_service.frontends import FrontEnd, front_end

ROWS = tf.data.Dataset.from_tensor_slices(np.ones((4, 3), np.float32))


def two_inputs() -> keras.Model:
    inputs = [keras.Input((3,)), keras.Input((3,))]
    return keras.Model(inputs, layers.Dense(1)(layers.Add()(inputs)))


def front_of(data: tf.data.Dataset) -> FrontEnd:
    program = KerasProgram(model=two_inputs, loss="mse", train=lambda shard, shards: data)
    return front_end(program, sample_job(), 1, 0)


def test_examples_of_unknown_rank_are_left_to_keras() -> None:
    def example(row: Any) -> Any:
        return (tf.numpy_function(lambda x: x, [row], tf.float32), row), row[:1]

    with pytest.raises(ProgramError, match="the model's forward pass or loss raised"):
        front_of(ROWS.map(example))


def test_batches_of_batches_are_refused() -> None:
    with pytest.raises(
        ProgramError, match=r"examples have x of shape \[\[4, 3\], \[4, 3\]\], expected \[\[3\], \[3\]\]"
    ):
        front_of(ROWS.map(lambda row: ((row, row), row[:1])).batch(4, drop_remainder=True))
