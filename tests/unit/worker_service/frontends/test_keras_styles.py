"""Keras models of many styles train for twenty steps as Keras itself trains them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import MODELS
from support.keras_styles import STYLES
from support.program_samples import Stepper, sample_job

from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import front_end

STEPS = 20
RATE = 0.01
RATES = {"mobile_net": 1e-4}
"""With batches of four, its 27 batch normalizations amplify rounding errors."""
BATCH_SIZE = 4
HARDEST = {**STYLES, "several": MODELS["several"]}
METRICS = {"two_towers": {"label": ["accuracy"], "score": "mae"}, "several": {"label": "accuracy"}}


def program_of(name: str) -> KerasProgram:
    model, x, y, loss = HARDEST[name]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return KerasProgram(model=model, loss=loss, train=lambda shard, shards: data, metrics=METRICS.get(name))


def batch_of(name: str, step: int) -> Any:
    """Batches of four of the twelve examples, over and over."""
    start = step % 3 * BATCH_SIZE
    return tf.nest.map_structure(lambda array: array[start : start + BATCH_SIZE], HARDEST[name][1:3])


def losses_of_keras(name: str) -> list[float]:
    """The loss of each step of `keras.Model.train_on_batch`."""
    program = program_of(name)
    model = built_model(program, sample_job())
    model.compile(
        keras.optimizers.SGD(RATES.get(name, RATE)), loss=program.loss, metrics=program.metrics, jit_compile=False
    )
    losses = []
    for step in range(STEPS):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*batch_of(name, step), return_dict=True)["loss"]))
    return losses


@pytest.mark.filterwarnings("ignore:`build.*` was called on layer 'two_towers'")
@pytest.mark.parametrize("name", HARDEST)
def test_twenty_steps_have_the_losses_of_keras(name: str) -> None:
    stepper = Stepper.of(front_end(program_of(name), sample_job(), 1, 0))
    specs = (*stepper.front.parameters, *stepper.front.state, *stepper.front.frozen)
    assert len({spec.name for spec in specs}) == len(specs)
    values, losses, rate = stepper.front.initial_values(), [], np.float32(RATES.get(name, RATE))
    fetches = [stepper.graph.loss, stepper.graph.gradients, stepper.graph.new_state]
    for step in range(STEPS):
        loss, gradients, state = stepper.run(fetches, tf.nest.flatten(batch_of(name, step)), values, step)
        losses.append(float(loss))
        for spec, gradient in zip(stepper.front.parameters, gradients, strict=True):
            values[spec.name] = values[spec.name] - rate * gradient.reshape(spec.shape)
        values |= {spec.name: value for spec, value in zip(stepper.front.state, state, strict=True)}
    np.testing.assert_allclose(losses, losses_of_keras(name), rtol=1e-3)
    assert losses[0] != pytest.approx(losses[18], rel=1e-3), "the same batch has the same loss: nothing was trained"
