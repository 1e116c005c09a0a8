"""A worker's gradient of one loss in its step's graph: checked, accumulated, clipped, and kept for records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.layout.buckets import loss_names, specs_of_loss
from psfleet.tf import byte_vectors
from worker_service.accumulation import GradientSums
from worker_service.clipping import clipped, norm_if
from worker_service.frontends import finite
from worker_service.frontends.interface import TrainingGraph
from worker_service.frontends.table_rows import TableGradient


@dataclass(frozen=True)
class LossStep:
    """What a step with one loss computes before anything is exchanged.

    Attributes:
        loss: float32 scalar, of the last microbatch.
        gradients: float32 `[size]` for each tensor that the loss moves: of the whole batch, clipped.
        new_state: uint8 `[layout.state.size]`, after the forward pass.
        updates: Operations that must run with the step.
        accumulate: See `StepGraph.accumulate`.
        tables: Gradients of rows of tables, clipped with the others.
    """

    loss: tf.Tensor
    gradients: Sequence[tf.Tensor]
    new_state: tf.Tensor
    updates: Sequence[tf.Operation]
    accumulate: tf.Tensor | None
    tables: Sequence[TableGradient] = ()


class KeptGradient:
    """The newest gradient and its norm, for the chief's records; see `StepGraph` for the attributes.

    Args of the constructor:
        index: Of the worker.
    """

    def __init__(self, job: Job, layout: Layout, index: int) -> None:
        self._layout = layout.parameters
        clip_norms = [rule.clip_norm for rule in job.rules.values()]
        self.wants_norm: tf.Tensor | None = None
        if index == 0 and None in clip_norms:
            self.wants_norm = v1.placeholder_with_default(False, [], name="wants_norm")
        has_norm = index == 0 or any(norm is not None for norm in clip_norms)
        self.norm = local_variable("gradient_norm", [], tf.float32) if has_norm else None
        kept = layout.parameters.specs if job.summaries.gradient_histograms and index == 0 else ()
        # Assigned, each shares the memory of the gradient.
        self.gradients = [
            local_variable(f"gradient_{number}", [spec.size], tf.float32) for number, spec in enumerate(kept)
        ]

    def store(self, loss: int, gradients: Sequence[tf.Tensor], norm: tf.Tensor | None) -> list[tf.Operation]:
        """Stores the gradient of a loss and its norm before clipping, as the job asks for it; None: it is not clipped.

        Args:
            loss: Its index.
        """
        if norm is None and self.wants_norm is not None:
            norm = norm_if(self.wants_norm, gradients)
        own = specs_of_loss(self._layout, loss)
        variables = [
            variable for variable, spec in zip(self.gradients, self._layout.specs, strict=False) if spec in own
        ]
        pairs = list(zip(variables, gradients, strict=False))
        if self.norm is not None and norm is not None:
            pairs.append((self.norm, norm))
        return [variable.assign(value, read_value=False) for variable, value in pairs]


def loss_step(
    training: TrainingGraph,
    job: Job,
    layout: Layout,
    loss: int,
    state: tf.Variable,
    microbatch: tf.Tensor,
    kept: KeptGradient,
) -> LossStep:
    """Adds the gradient of a loss to the default graph.

    Args:
        training: The step with this loss.
        loss: Its index.
        state: The worker's copy, uint8 `[layout.state.size]`.
        microbatch: int64 scalar, its number.
    """
    training = finite.checked(training, layout, loss)
    new_state = byte_vectors.pack(layout.state, training.new_state)
    accumulate: tf.Tensor | None = None
    value = training.loss
    if job.train.accumulate > 1:
        training, accumulate = _accumulated(training, job, loss, state, new_state, microbatch)
    clip_norm = job.rules[loss_names(layout.parameters)[loss]].clip_norm
    with tf.control_dependencies([value]):
        # The norm is that over all tensors: rows that are not in the batch have no gradient.
        unclipped = [*training.gradients, *[table.values for table in training.tables]]
        every, norm = clipped(unclipped, clip_norm)
    gradients, of_rows = every[: len(training.gradients)], every[len(training.gradients) :]
    tables = [replace(table, values=values) for table, values in zip(training.tables, of_rows, strict=True)]
    updates = [*training.updates, *kept.store(loss, unclipped, norm)]
    return LossStep(value, gradients, new_state, updates, accumulate, tables)


def _accumulated(
    training: TrainingGraph, job: Job, loss: int, state: tf.Variable, new_state: tf.Tensor, microbatch: tf.Tensor
) -> tuple[TrainingGraph, tf.Tensor]:
    """The step of a batch's last microbatch, with the gradient of the whole batch; and that of the ones before."""
    gradients = training.gradients
    variables = [
        local_variable(f"gradient_sum_{loss}_{at}", each.shape, tf.float32) for at, each in enumerate(gradients)
    ]
    sums = GradientSums(variables, gradients, microbatch, job.train.accumulate)
    kept = [state.assign(new_state, read_value=False)] if state.shape[0] else []
    with tf.control_dependencies([*sums.add, *kept, *training.updates]):
        accumulate = tf.identity(training.loss)
    return replace(training, gradients=sums.means), accumulate


def local_variable(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """A variable of the worker's graph, zeros at the start."""
    return v1.get_variable(
        f"worker/{name}", shape, dtype, initializer=v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
