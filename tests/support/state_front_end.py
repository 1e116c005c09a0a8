"""A front end whose forward pass changes state of several types, for `graph_fleet`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.layout import Layout, TensorSpec
from support.graph_fleet import SIZE, TwoTensors
from worker_service.frontends.interface import TrainingGraph

MOMENTUM = 0.5


class MovingAverages(TwoTensors):
    """`TwoTensors` with a moving average of x in each floating point type, and a number of steps.

    Every new average depends on all elements of that in float32.

    On two ps, the first has most of the average in float32, and the second has its rest and the other tensors.
    """

    state = (
        TensorSpec("mean", (10, SIZE)),
        TensorSpec("half", (SIZE,), "float16"),
        TensorSpec("double", (2, SIZE), "float64"),
        TensorSpec("steps", (), "int64"),
        TensorSpec("has_trained", (3,), "bool"),
    )

    def build(self, layout: Layout, parameters: Sequence[tf.Tensor], *others: Any, **_: object) -> TrainingGraph:
        """See `FrontEnd`."""
        training = super().build(layout, parameters)
        *averages, steps, _ = others[0]
        x = training.feeds[0]
        new = MOMENTUM * tf.reduce_mean(averages[0]) + (1 - MOMENTUM) * x
        moved = [tf.fill(average.shape, tf.cast(new, average.dtype)) for average in averages]
        return replace(training, new_state=(*moved, steps + 1, tf.fill([3], True)))


def averages(state: dict[str, np.ndarray]) -> list[float]:
    """The moving averages in float16, float32 and float64; all elements of each are equal."""
    assert all(np.unique(state[name]).size == 1 for name in ("half", "mean", "double")), state
    return [float(state[name].flat[0]) for name in ("half", "mean", "double")]


def moving_average(values: Sequence[float]) -> float:
    """That of these values, from zero."""
    average = 0.0
    for value in values:
        average = MOMENTUM * average + (1 - MOMENTUM) * value
    return average
