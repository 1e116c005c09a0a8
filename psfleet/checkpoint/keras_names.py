"""Unique names for the variables and layers of a Keras model, as used in layouts, checkpoints and exports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class Variable(Protocol):
    """Interface of `keras.Variable`: its path."""

    @property
    def path(self) -> str:
        """Names of the layers and of the variable, joined by slashes; not always unique."""


def distinct_variables(model: Any) -> tuple[list[Any], list[Any]]:
    """The trainable and the other variables of a built model, each once.

    Keras lists the state of a seed generator twice that both the model and a layer of it keep.
    """
    trained, others = (
        list({id(variable): variable for variable in variables}.values())
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    return trained, others


def keras_names(variables: Sequence[Variable]) -> list[str]:
    """The names of `distinct_variables`, the trainable ones first: paths, `numbered`.

    `model.variables` has another order, and would therefore number the variables differently.
    """
    return numbered(variable.path for variable in variables)


def named_variables(model: Any) -> dict[str, Any]:
    """All variables of a built model by `keras_names`, the trainable ones first."""
    trained, others = distinct_variables(model)
    variables = [*trained, *others]
    return dict(zip(keras_names(variables), variables, strict=True))


def numbered(names: Iterable[str], separator: str = "#") -> list[str]:
    """The same names in their order; the second of equal ones has the suffix `#2`, the third `#3`, and so on."""
    found: list[str] = []
    used: set[str] = set()
    for each in names:
        name, copies = each, 1
        while name in used:
            copies += 1
            name = f"{each}{separator}{copies}"
        used.add(name)
        found.append(name)
    return found
