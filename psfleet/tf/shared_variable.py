"""A variable that graphs of several processes share by its name, as a handle and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable


class SharedVariable(BaseResourceVariable):
    """A handle whose reads and changes are one operation each; those of its base class are two."""

    def read_value(self) -> tf.Tensor:
        """See tf.Variable."""
        with tf.device(self.handle.device):
            return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def read_element(self, index: tf.Tensor | int) -> tf.Tensor:
        """The element of a vector at an index, int32 scalar."""
        with tf.device(self.handle.device):
            return tf.raw_ops.ResourceGather(resource=self.handle, indices=index, dtype=self.dtype)

    def add_at(self, index: Sequence[tf.Tensor | int], value: tf.Tensor) -> tf.Operation:
        """Adds to the element at an index, which has a number for each dimension."""
        with tf.device(self.handle.device):
            return tf.raw_ops.ResourceScatterNdAdd(ref=self.handle, indices=[index], updates=[value])

    def set_at(self, index: Sequence[tf.Tensor | int], value: tf.Tensor) -> tf.Operation:
        """Sets the element at an index."""
        with tf.device(self.handle.device):
            return tf.raw_ops.ResourceScatterNdUpdate(ref=self.handle, indices=[index], updates=[value])
