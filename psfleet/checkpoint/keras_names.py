"""Gives each variable of a Keras model the name that layouts, checkpoints and exports use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Variable(Protocol):
    """The part of `keras.Variable` that names it."""

    @property
    def path(self) -> str:
        """Layers and name, joined by slashes; not always unique."""


def keras_names(variables: Sequence[Variable]) -> list[str]:
    """The names of `[*model.trainable_variables, *model.non_trainable_variables]`, in that order.

    A variable's name is its path; the second variable of the same path gets `#2` behind it, the third `#3`, and so on.
    (`model.variables` holds the same variables in another order, which would number them differently.)
    """
    names: list[str] = []
    taken: set[str] = set()
    for variable in variables:
        name, copies = variable.path, 1
        while name in taken:
            copies += 1
            name = f"{variable.path}#{copies}"
        taken.add(name)
        names.append(name)
    return names
