"""Constants of layers that are no variables: workers compare their fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.program_samples import sample_job

from psfleet.errors import BadJobError
from psfleet.job.program import KerasProgram
from psfleet.layout import Layout
from worker_service.fleet_state import check_constants
from worker_service.frontends import front_end

X = (np.random.default_rng(1).normal(size=(40, 6)) + 3).astype(np.float32)
Y = np.zeros((40, 1), np.float32)
Values = np.ndarray


class Projected(layers.Layer):
    """Has a matrix that is no weight."""

    def __init__(self, matrix: Values) -> None:
        super().__init__(name="projected")
        self.matrix = matrix

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.matrix)


def normalized(values: Values) -> layers.Layer:
    layer = layers.Normalization()
    layer.adapt(values)
    return layer


def projected(values: Values) -> layers.Layer:
    return Projected(values[:6, :6])


def projected_by_a_large_tensor(values: Values) -> layers.Layer:
    return Projected(tf.constant(np.tile(values[:6], (1, 30))))


def constants_of(layer: Callable[[Values], layers.Layer], values: Values) -> dict[str, str]:
    def model() -> keras.Model:
        return keras.Sequential([keras.Input((6,)), layer(values), layers.BatchNormalization(), layers.Dense(1)])

    data = tf.data.Dataset.from_tensor_slices((X, Y))
    program = KerasProgram(model=model, loss="mse", train=lambda *_: data)
    front = front_end(program, sample_job(), 1, 0)
    plain = Layout.plan(front.parameters, front.state, front.frozen, 1, 4096)
    planned = Layout.plan(front.parameters, front.state, front.frozen, 1, 4096, front.tables)
    assert planned.digest() == plain.digest(), "rounding changes them"
    assert Layout.from_dict(planned.to_dict()).tables == planned.tables, "the ps do not get them"
    return dict(front.tables)


@pytest.mark.parametrize("layer", [normalized, projected, projected_by_a_large_tensor])
def test_workers_whose_layers_have_other_constants_are_refused(layer: Callable[[Values], layers.Layer]) -> None:
    """A program that adapts a layer to its shard of the data gives each worker others."""
    first, again, half = (constants_of(layer, values) for values in (X, X.copy(), X[20:]))
    assert first == again
    check_constants(first, constants_of(layer, X * np.float32(1 + 1e-6)))
    scope = f"/{'normalization' if layer is normalized else 'projected'}"
    with pytest.raises(BadJobError, match=rf"constants of .*{scope}.*expected the same constants in every worker"):
        check_constants(first, half)
