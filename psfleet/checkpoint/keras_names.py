"""Unique names for the variables of a Keras model, as used in layouts, checkpoints and exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Variable(Protocol):
    """Interface of `keras.Variable`: its path."""

    @property
    def path(self) -> str:
        """Names of the layers and of the variable, joined by slashes; not always unique."""


def keras_names(variables: Sequence[Variable]) -> list[str]:
    """The names of `[*model.trainable_variables, *model.non_trainable_variables]`, in that order.

    The name is the variable's path; the second variable of a path has the suffix `#2`, the third `#3`, and so on.
    `model.variables` has another order, and would therefore number the variables differently.
    """
    names: list[str] = []
    used: set[str] = set()
    for variable in variables:
        name, copies = variable.path, 1
        while name in used:
            copies += 1
            name = f"{variable.path}#{copies}"
        used.add(name)
        names.append(name)
    return names
