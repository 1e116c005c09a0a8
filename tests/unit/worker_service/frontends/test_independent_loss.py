"""A loss that depends on no trainable variable is refused: it would train nothing, and the run would end well."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import Stepper, sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.frontends import front_end

v1 = tf.compat.v1
X, Y = np.ones((10, 3), np.float32), np.ones((10, 1), np.float32)


def train(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shard(shards, shard)


def of_nothing(batch: Any) -> tf.Tensor:
    """As of a variable that the program forgets to use."""
    v1.get_variable("w", [])
    return tf.reduce_mean(batch[0])


def stopped(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.stop_gradient(y_pred) - y_true))


def linear() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("program", "loss"),
    [
        pytest.param(GraphProgram(loss=of_nothing, train=train), r"loss\(batch\)", id="graph"),
        pytest.param(KerasProgram(model=linear, loss=stopped, train=train), "the loss of the model", id="keras"),
    ],
)
def test_a_loss_that_depends_on_no_trainable_variable_is_refused(
    program: GraphProgram | KerasProgram, loss: str
) -> None:
    front = front_end(program, sample_job(), 1, 0)
    with pytest.raises(ProgramError, match=f"^program '[^']*': {loss} depends on no trainable variable, expected at"):
        Stepper.of(front)
