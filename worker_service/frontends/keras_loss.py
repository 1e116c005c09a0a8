"""The loss of a Keras model, called as Keras' own training step calls it."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf


def loss_of(model: keras.Model, x: Any, y: Any, y_pred: Any, weight: Any) -> tf.Tensor:
    """Calls `compute_loss` of the model.

    Keras passes the arguments by position, and `training` by name if there is such a parameter (trainer.py,
    `_compute_loss`). Here they are passed by name if the parameters have Keras' names, in any order, and sample weights
    are optional if the data have none.

    Args:
        weight: Sample weights; None: there are none.
    """
    signature = inspect.signature(model.compute_loss)
    parameters = signature.parameters.keys()
    named = {"training": True} if "training" in parameters else {}
    weighted = {"sample_weight": weight} if weight is not None or "sample_weight" in parameters else {}
    by_name = {"x": x, "y": y, "y_pred": y_pred, **weighted}
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((x, y, y_pred, weight), {}), ((x, y, y_pred), weighted)]
    if parameters >= {"x", "y", "y_pred"}:
        ways.insert(0, ((), by_name))
    for given, keywords in ways:
        if _takes(signature, given, {**keywords, **named}):
            return model.compute_loss(*given, **keywords, **named)
    # The error names the first one that is missing.
    return model.compute_loss(x, y, y_pred, weight, **named)


def _takes(signature: inspect.Signature, given: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    try:
        signature.bind(*given, **keywords)
    except TypeError:
        return False
    return True
