"""The share of a tower in a loss that is divided by the weights of a batch's examples.

The mean over towers of a mean over examples is that of the whole batch if all examples count alike. With a mask, or a
division by the sum of the sample weights, the examples of one tower can count more than those of another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from keras import ops
from keras.src.losses import loss as keras_loss

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.job.user_code import user_code
from worker_service.frontends.interface import Share


def scaled(loss: tf.Tensor, share: Share, towers: int) -> tf.Tensor:
    """A tower's loss, so that the mean over the towers is the loss of the whole batch.

    Args:
        loss: Float, a mean over the tower's examples with their weights; or a gradient of it.
        share: Of those weights.
        towers: Number of towers.
    """
    return loss * tf.cast(towers * tf.math.divide_no_nan(share.own, share.total), loss.dtype)


def share_of(weight: tf.Tensor) -> Share:
    """The share of a tower whose examples have this weight in all, a scalar, in the default graph."""
    return Share(tf.cast(weight, tf.float32), tf.compat.v1.placeholder(tf.float32, []))


def tensors_of(shares: Sequence[Share]) -> list[tf.Tensor]:
    """The tensors of shares in one list, of which `shares_of` makes shares again."""
    return [tensor for share in shares for tensor in (share.own, share.total)]


def shares_of(tensors: Sequence[tf.Tensor]) -> tuple[Share, ...]:
    """The inverse of `tensors_of`."""
    return tuple(Share(own, total) for own, total in zip(tensors[::2], tensors[1::2], strict=True))


def graph_shares(program: GraphProgram, job: Job, towers: int, batch: Any) -> tuple[Share, ...]:
    """That of a tower in all losses of a graph program; none if the program does not say what its examples weigh.

    Raises:
        ProgramError: The program raised, or the weight is no scalar.
    """
    if towers == 1 or program.loss_weight is None:
        return ()
    with user_code(job, "loss_weight(batch)"):
        weight = tf.convert_to_tensor(program.loss_weight(batch))
    if weight.shape.rank != 0:
        raise ProgramError(f"program {job.program!r}: loss_weight(batch) has shape {weight.shape}, expected a scalar")
    return (share_of(weight),)


@contextmanager
def keras_shares(towers: int, program: str) -> Iterator[list[Share]]:
    """Scales what Keras' losses return inside the context, as `scaled`; with one tower it does nothing.

    Keras reduces the losses of examples in one function, which is replaced meanwhile. A loss that does not call it is
    taken for a mean over examples that count alike, and so is what a model adds to its loss. Losses that another thread
    computes meanwhile are as ever.

    Args:
        towers: Number of towers.
        program: The job's `program`, for messages.

    Yields:
        The shares, once the losses were called.
    """
    shares: list[Share] = []
    if towers == 1:
        yield shares
        return
    original, graph = keras_loss.reduce_weighted_values, tf.compat.v1.get_default_graph()
    own_thread = threading.get_ident()

    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if threading.get_ident() != own_thread:
            return loss
        if reduction == "sum" and tf.convert_to_tensor(values).shape.rank != 0:
            return loss * towers
        weight = _weight(sample_weight, mask, reduction)
        if weight is None:
            return loss
        if tf.compat.v1.get_default_graph() is not graph:
            raise ProgramError(
                f"program {program!r}: a loss with a mask or with reduction {reduction} is computed inside of a "
                "function or loop, expected it outside with several towers (device.replicas)"
            )
        shares.append(share_of(weight))
        return scaled(loss, shares[-1], towers)

    keras_loss.reduce_weighted_values = reduced
    try:
        yield shares
    finally:
        keras_loss.reduce_weighted_values = original


def _weight(sample_weight: Any, mask: Any, reduction: Any) -> tf.Tensor | None:
    """The divisor of Keras' mean, which depends on the tower's examples; None: it is the number of losses.

    As in `keras.src.losses.loss.reduce_weighted_values`.
    """
    if reduction in ("mean", "sum_over_batch_size") and mask is not None:
        return ops.sum(ops.cast(mask, "float32"))
    if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
        given = None if sample_weight is None else ops.convert_to_tensor(sample_weight, "float32")
        flags = None if mask is None else ops.convert_to_tensor(mask, "float32")
        return ops.sum(keras_loss.apply_mask(given, flags, dtype="float32", reduction=reduction))
    return None
