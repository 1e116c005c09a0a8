"""What a model may not do in the graph of a step."""

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


@keras.saving.register_keras_serializable()
class DroppingCell(layers.Layer):
    """A cell of a recurrent layer with a layer that draws random numbers, and so assigns a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.state_size = 3
        self.dense, self.dropout = layers.Dense(3), layers.Dropout(0.5, name="drop")

    def build(self, input_shape: Any) -> None:
        """See keras.layers.Layer."""
        self.dense.build((None, input_shape[-1] + 3))

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        """See keras.layers.RNN."""
        state = self.dropout(self.dense(keras.ops.concatenate([x, states[0]], -1)), training=training)
        return state, [state]


def front_of(unroll: bool) -> FrontEnd:
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 5, 2), np.float32), np.ones((8, 3), np.float32)))

    def model() -> keras.Model:
        return keras.Sequential([keras.Input([5, 2]), layers.RNN(DroppingCell(), unroll=unroll)])

    return front_end(KerasProgram(model=model, loss="mse", train=lambda *_: data), sample_job(), 1, 0)


def test_a_variable_that_is_assigned_in_a_loop_is_named() -> None:
    with pytest.raises(ProgramError, match=r"seed_generator_state is assigned inside of a loop.*unroll=True"):
        front_of(unroll=False)


def test_a_recurrent_layer_without_a_loop_may_draw_in_its_cell() -> None:
    assert [spec.name for spec in front_of(unroll=True).state] == ["seed_generator/seed_generator_state"]
