"""The weight of each example in the loss: from the data set, or from the class of its label as in Keras' `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError


class SampleWeights:
    """Unpacks batches `(x, y)` and `(x, y, sample_weight)`.

    Args of the constructor:
        program: The job's `program`, for messages.
        class_weight: See `KerasProgram.class_weight`.
        batch_spec: The structure of a batch.

    Raises:
        ProgramError: Class weights do not fit the examples, as in Keras.
    """

    def __init__(self, program: str, class_weight: Mapping[int, float] | None, batch_spec: Any) -> None:
        self._by_class: np.ndarray | None = None
        if not class_weight:
            return
        problem = None
        if len(batch_spec) == 3:
            problem = "the examples have a sample_weight, expected either that or class_weight"
        elif tf.nest.is_nested(batch_spec[1]):
            problem = "class_weight is given and y is several tensors, expected a single output"
        if problem:
            raise ProgramError(f"program {program!r}: {problem}")
        weights = [class_weight.get(number, 1.0) for number in range(max(class_weight) + 1)]
        self._by_class = np.array(weights, np.float32)

    def unpacked(self, batch: Any) -> tuple[Any, Any, Any]:
        """x, y and the sample weights of a batch: float, `[batch]` or any shape that Keras takes; None: all are 1."""
        x, y, *weight = batch
        if self._by_class is not None:
            weight = [self._weights(self._by_class, y)]
        return x, y, weight[0] if weight else None

    @staticmethod
    def _weights(by_class: np.ndarray, y: tf.Tensor) -> tf.Tensor:
        """Those of labels `[batch]` or `[batch, ..., 1]`, or of one-hot rows; classes without a weight have 1.

        The classes are those of Keras: tf_dataset_adapter.py, make_class_weight_map_fn.
        """
        if y.shape.rank is None or y.shape.rank < 2:
            classes = tf.cast(tf.round(y), tf.int32)
        else:
            # The number of columns may be unknown in the shape of the data set's elements.
            largest, first = tf.argmax(y, -1, output_type=tf.int32), tf.cast(tf.round(y[..., 0]), tf.int32)
            classes = tf.where(tf.shape(y)[-1] > 1, largest, first)
        last = len(by_class) - 1
        is_weighted = (classes >= 0) & (classes <= last)
        return tf.where(is_weighted, tf.gather(by_class, tf.clip_by_value(classes, 0, last)), 1.0)
