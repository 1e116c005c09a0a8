"""The global norm of a worker's gradient, over all tensors, and clipping to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf


def clipped(gradients: Sequence[tf.Tensor], clip_norm: float | None) -> tuple[Sequence[tf.Tensor], tf.Tensor | None]:
    """The gradient, scaled down to `clip_norm` if its global norm is larger; any finite gradient stays finite.

    The squares of elements above 1e19 exceed float32, and `tf.clip_by_global_norm` returns NaN for an infinite norm.
    Only then the gradient is first divided by its largest element: that takes two more passes over all elements.

    Args:
        gradients: float32 `[size]` for each parameter.
        clip_norm: None: nothing is clipped.

    Returns:
        The gradient; and its global norm before that, float32 scalar, infinite if it exceeds float32. None: nothing is
        clipped, and the norm would cost a pass over all elements.
    """
    if clip_norm is None:
        return [tf.identity(gradient) for gradient in gradients], None
    norm = tf.linalg.global_norm(gradients)

    def usual() -> list[tf.Tensor]:
        scaled, _ = tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)
        return list(scaled)

    def large() -> list[tf.Tensor]:
        largest = tf.reduce_max(tf.stack([tf.reduce_max(tf.abs(gradient)) for gradient in gradients]))
        ones = [gradient / largest for gradient in gradients]
        # Not clip_norm / norm: that norm may exceed float32, and its inverse is a denormal number, which becomes 0.
        factor = tf.minimum(clip_norm / tf.linalg.global_norm(ones), largest)
        return [factor * one for one in ones]

    result: list[tf.Tensor] = tf.nest.flatten(tf.cond(tf.math.is_finite(norm), usual, large))
    return result, norm


def norm_if(is_wanted: tf.Tensor, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The global norm of a gradient, float32 scalar; NaN without a pass over all elements if it is not wanted.

    Args:
        is_wanted: bool scalar.
        gradients: float32 `[size]` for each parameter.
    """
    norm: tf.Tensor = tf.cond(is_wanted, lambda: tf.linalg.global_norm(gradients), lambda: tf.constant(math.nan))
    return norm
