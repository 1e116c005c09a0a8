"""Whether a Keras model knows its inputs."""

from __future__ import annotations

from typing import TypeGuard

import keras
from keras.src.models.functional import Functional


def knows_inputs(model: keras.Model) -> TypeGuard[keras.Sequential | Functional]:
    """Whether a model has `inputs`: a functional one, or a Sequential one whose first layer takes a single tensor."""
    return isinstance(model, Functional) or (isinstance(model, keras.Sequential) and hasattr(model, "inputs"))
