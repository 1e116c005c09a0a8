"""A member's model as a function that the front's graph calls on the device of that member."""

from __future__ import annotations

import logging
from typing import Self

import numpy as np
from tensorflow.python.ops import script_ops

from psfleet.errors import ProgramError
from psfleet.tf.query_queues import PREDICT, empty_outputs
from worker_service.member.model import ServedModel

logger = logging.getLogger("psfleet.member")


class PredictFunction:
    """Context manager for the function of this process.

    Args of the constructor:
        model: Predicts; has weights.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def __enter__(self) -> Self:
        # The registry of tf.py_function, which has no public call to choose the token; it keeps weak references.
        script_ops._py_funcs._funcs[PREDICT] = self
        return self

    def __exit__(self, *exception: object) -> None:
        del script_ops._py_funcs._funcs[PREDICT]

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Step of the weights, error, and the outputs; called by TensorFlow."""
        if not len(inputs[0]):
            return [np.array(0, np.int64), np.array(b"", object), *empty_outputs(self._model.metadata)]
        try:
            step, outputs = self._model.predict(inputs)
        except ProgramError as error:
            logger.warning("no prediction: %s", error)
            return [np.array(0, np.int64), np.array(str(error).encode(), object), *empty_outputs(self._model.metadata)]
        return [np.array(step, np.int64), np.array(b"", object), *outputs]
