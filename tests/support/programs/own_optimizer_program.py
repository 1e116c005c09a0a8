"""The program of `exact_keras_program` with an optimizer of its own."""

from __future__ import annotations

from typing import Any

import keras

import psfleet
from support.programs import exact_keras_program

RATE = 0.02


class Cautious(keras.optimizers.Optimizer):
    """Momentum that moves a weight only where it agrees with the gradient, with a rate that falls as it counts."""

    def __init__(self, learning_rate: float = RATE, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)

    def build(self, variables: list[Any]) -> None:
        """Makes the slots; the second one does not start at zero."""
        if self.built:
            return
        super().build(variables)
        self._moves, self._sizes = self.add_optimizer_variables(
            variables, ["move", "size"], initializer=["zeros", keras.initializers.Constant(0.5)]
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable and its slots."""
        move, size = (slots[self._get_variable_index(variable)] for slots in (self._moves, self._sizes))
        self.assign(move, 0.9 * move + gradient)
        self.assign_add(size, 0.1 * (keras.ops.square(gradient) - size))
        agrees = move * gradient > 0
        step = keras.ops.where(agrees, move, keras.ops.zeros_like(move)) / (keras.ops.sqrt(size) + 0.1)
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * step / keras.ops.sqrt(keras.ops.cast(self.iterations + 1, variable.dtype)))


def build(optimizer: str = "Cautious", **options: Any) -> psfleet.KerasProgram:
    """The program with the optimizer of a name, of this module or of Keras."""
    classes = {"Cautious": Cautious}
    make = classes.get(optimizer) or getattr(keras.optimizers, optimizer)
    return psfleet.KerasProgram(
        model=exact_keras_program.model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train=exact_keras_program.train,
        optimizer=make(**options),
    )
