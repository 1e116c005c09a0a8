"""Keras models of many styles train, step by step, as Keras itself trains them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.keras_models import MODELS
from support.keras_styles import STYLES
from support.program_samples import Stepper, sample_job
from support.rows import first_rows

from psfleet.checkpoint.keras_names import keras_names
from psfleet.job.program import KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import front_end

STEPS = 20
COMPARED = 4
"""Steps that are compared with Keras, in which rounding errors stay small: three batches, and the first once more."""
RATE = 0.02
RATES = {"mobile_net": 1e-3}
"""With batches of four, its batch normalizations amplify rounding errors."""
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


def trained_by_keras(name: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """The loss of each step of `keras.Model.train_on_batch`, run eagerly, and the variables after the last one."""
    program = program_of(name)
    model = built_model(program, sample_job())
    optimizer = keras.optimizers.SGD(RATES.get(name, RATE))
    model.compile(optimizer, loss=program.loss, metrics=program.metrics, run_eagerly=True)
    losses = []
    for step in range(COMPARED):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*batch_of(name, step), return_dict=True)["loss"]))
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return losses, dict(zip(keras_names(variables), (each.numpy() for each in variables), strict=True))


@pytest.mark.filterwarnings("ignore:`build.*` was called on layer 'two_towers'")
@pytest.mark.parametrize("name", first_rows(HARDEST, 4))
def test_losses_weights_and_state_are_those_of_keras_and_training_continues(name: str) -> None:
    stepper = Stepper.of(front_end(program_of(name), sample_job(), 1, 0))
    specs = (*stepper.front.parameters, *stepper.front.state, *stepper.front.frozen)
    assert len({spec.name for spec in specs}) == len(specs)
    values, losses, rate = stepper.front.initial_values(), [], np.float32(RATES.get(name, RATE))
    compared = values
    fetches = [stepper.graph.loss, stepper.graph.gradients, stepper.graph.new_state]
    for step in range(STEPS):
        compared = dict(values) if step == COMPARED else compared
        loss, gradients, state = stepper.run(fetches, tf.nest.flatten(batch_of(name, step)), values, step)
        losses.append(float(loss))
        for spec, gradient in zip(stepper.front.parameters, gradients, strict=True):
            values[spec.name] = values[spec.name] - rate * gradient.reshape(spec.shape)
        values |= {spec.name: value for spec, value in zip(stepper.front.state, state, strict=True)}
    expected_losses, expected = trained_by_keras(name)
    np.testing.assert_allclose(losses[:COMPARED], expected_losses, rtol=1e-4)
    assert {spec.name for spec in specs if spec.is_saved} == expected.keys()
    for variable, value in expected.items():
        np.testing.assert_allclose(compared[variable], value, rtol=1e-3, atol=1e-5, err_msg=variable)
    assert all(np.isfinite(value).all() for value in [losses, *values.values()])
    assert losses[0] != pytest.approx(losses[3], rel=1e-3), "the same batch has the same loss: nothing was trained"
