"""The random numbers of a Keras model's step: a function of `train.seed`, the worker and the number of the batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

SEED_STRIDE = 506_952_115
"""Distance of the dropout seeds of neighbouring workers; odd, so that small multiples differ modulo 2^31 - 2."""


class RandomState:
    """The state of a model's random layers: `keras.random.SeedGenerator`, a seed and the number of its draws.

    The seed on the ps comes from building the model, and so from `train.seed`. The draws are counted here: a step that
    is repeated, by this process or another, has the same random numbers. Those of the chief are those of Keras' `fit`.

    Args of the constructor:
        variables: The model's state, with the values that it has after building.
        num_draws: How often each variable, by id, is assigned in a step.
        index: Of this worker.
    """

    def __init__(self, variables: Sequence[Any], num_draws: Mapping[int, int], index: int) -> None:
        self._shift = index * SEED_STRIDE
        self._draws = [
            (int(variable.numpy()[1]), num_draws[id(variable)])
            if variable.path.endswith("seed_generator_state")
            else None
            for variable in variables
        ]

    def of_worker(self, index: int) -> RandomState:
        """That of another worker."""
        other = copy.copy(self)
        other._shift = index * SEED_STRIDE
        return other

    def of_step(self, state: Sequence[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """The state at the start of this worker's step.

        Args:
            state: That of the ps, in the order of the variables.
            number: int64 scalar, of the batch.
        """
        seeded = list(state)
        for position, draws in enumerate(self._draws):
            if draws is not None:
                value, (in_build, in_step) = state[position], draws
                drawn = tf.cast(in_build + number * in_step, value.dtype)
                seeded[position] = tf.stack([value[0] + self._shift, drawn])
        return seeded

    def of_chief(self, new_state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The state after a step, with the seeds of the chief in place of this worker's."""
        return [
            value if draws is None else value - tf.constant([self._shift, 0], value.dtype)
            for value, draws in zip(new_state, self._draws, strict=True)
        ]
