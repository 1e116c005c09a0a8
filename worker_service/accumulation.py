"""Gradient accumulation: the sum of the gradients of a batch's microbatches, which a worker computes one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class GradientSums:
    """The sums of gradients in local variables of a worker's graph, and operations on them.

    A batch that is begun again, after a loss in its middle, starts with new sums.

    Args of the constructor:
        variables: float32 `[size]` for each parameter; hold the sums.
        gradients: float32 `[size]` for each parameter, of one microbatch.
        microbatch: int64 scalar, its number: a multiple of `num_microbatches` for the first one of a batch.

    Attributes:
        add: Operations that add the gradients to the sums.
        means: The means over the sums and the gradients, which are those of a batch's last microbatch.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        microbatch: tf.Tensor,
        num_microbatches: int,
    ) -> None:
        is_first = tf.equal(microbatch % num_microbatches, 0)
        self.add: list[tf.Operation] = []
        self.means: tuple[tf.Tensor, ...] = ()
        for so_far, gradient in zip(variables, gradients, strict=True):
            added = so_far.read_value() + gradient
            self.add.append(so_far.assign(tf.where(is_first, gradient, added), read_value=False))
            self.means += (added / num_microbatches,)


def microbatches(batch: Sequence[np.ndarray], number: int) -> list[list[np.ndarray]]:
    """Divides the examples of a batch, `[number * size, ...]` each, into so many parts; without copies."""
    if number == 1 or not batch:
        return [list(batch) for _ in range(number)]
    return [list(parts) for parts in zip(*(np.split(array, number) for array in batch), strict=True)]
