"""Interface of a front end: named tensors, their initial values, and one step's gradient as a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import EmbeddingSpec, Layout, Losses, Tables, TensorSpec
from worker_service.frontends.table_rows import Rows, TableGradient


@dataclass(frozen=True)
class Share:
    """What a tower's examples weigh in a loss.

    Attributes:
        own: `[]` float32: their weight.
        total: `[]` float32 placeholder for the weight of the whole batch, in whose place the sum over the towers comes.
    """

    own: tf.Tensor
    total: tf.Tensor


@dataclass(frozen=True)
class TrainingGraph:
    """One worker's step inside a v1 graph.

    Attributes:
        feeds: Placeholders for one batch, in `tf.nest.flatten` order of the data set's element; `[batch, ...]` each.
        loss: `[]` float32, of this batch before the update.
        gradients: `[size]` float32 for each tensor that the loss moves, see `specs_of_loss`: all if there is one loss;
            zeros where the loss does not depend on it.
        new_state: Values of `layout.state.specs` after the forward pass, in that order, shape and dtype.
        updates: Operations of the program that must run with each step.
        tables: Gradients of the rows of each of `layout.embeddings` that the step reads.
        summaries: `[]` string, a serialized `tf.compat.v1.Summary` of the program's own summaries; None if it has none.
        further: The steps of the other losses of a program with several, in their order; with the same `feeds` and
            `summaries`.
        shares: Of a tower in its losses, for those of all steps together; the same number in each tower.
    """

    feeds: tuple[tf.Tensor, ...]
    loss: tf.Tensor
    gradients: tuple[tf.Tensor, ...]
    new_state: tuple[tf.Tensor, ...]
    updates: tuple[tf.Operation, ...]
    summaries: tf.Tensor | None
    further: tuple[TrainingGraph, ...] = ()
    tables: tuple[TableGradient, ...] = ()
    shares: tuple[Share, ...] = ()

    @property
    def each(self) -> tuple[TrainingGraph, ...]:
        """The steps of all losses, in their order."""
        return self, *self.further


class StepBuilder(Protocol):
    """Builds the step of a worker."""

    def build(
        self,
        layout: Layout,
        parameters: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor],
        number: tf.Tensor | None = None,
        *,
        rows: Rows | None = None,
    ) -> TrainingGraph:
        """See `FrontEnd.build`."""
        ...


class FrontEnd(Protocol):
    """One kind of training program, ready to be built into a worker's graph.

    Attributes:
        parameters: Trainable tensors; float32, in the order of creation; those of a loss after those of the one before.
        state: Tensors that the forward pass may change, sorted by `state_order`.
        frozen: Tensors that never change.
        tables: Lookup tables that the step reads, in the order in which it reads them first, and constants of layers.
        losses: As in `FlatLayout`.
        embeddings: Embedding tables, in the order of the job's `tables`.
        evaluation: The batches of the evaluation data; None: the program has none, or the worker is not worker 0.
    """

    parameters: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    frozen: tuple[TensorSpec, ...]
    tables: Tables
    losses: Losses
    embeddings: tuple[EmbeddingSpec, ...]
    evaluation: tf.data.Dataset | None

    def of_worker(self, index: int) -> FrontEnd:
        """The front end of the same program for another worker; only its `build` is used."""
        ...

    def initial_values(self) -> dict[str, np.ndarray]:
        """Every named tensor's value from the program's initializers: a function of `job.train.seed`.

        Raises:
            ProgramError: A parameter or a tensor of state is not finite.
        """
        ...

    def build(
        self,
        layout: Layout,
        parameters: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor],
        number: tf.Tensor | None = None,
        with_gradients: bool = True,
        towers: int = 1,
        rows: Rows | None = None,
    ) -> TrainingGraph:
        """Adds the step to the default graph, a v1 graph.

        Args:
            layout: Of this front end's tensors.
            parameters: The vector `[layout.parameters.size]` float32 in pieces, see `flat.slices`.
            state: One tensor for each of `layout.state.specs`.
            frozen: One tensor for each of `layout.frozen.specs`.
            number: int64 scalar, of the microbatch. Keras programs derive its random numbers from it; None: 0.
            with_gradients: False: only the loss is needed, and `gradients` may be empty. A gradient is half of a graph.
            towers: Over which a worker divides its batch. With several, the graph is that of one of them, on its part
                of the batch, and the mean of their losses is that of the whole batch; see `worker_service.towers`.
            rows: Where rows of tables are read; None: they have their initial values.

        Raises:
            ProgramError: The program raised, or uses something that a worker does not support.
        """
        ...

    def evaluate(
        self, values: Mapping[str, np.ndarray], run_losses: Callable[[Sequence[np.ndarray]], Sequence[float]]
    ) -> dict[str, float]:
        """Metrics over the whole evaluation data; empty if the program has none. Only on worker 0.

        Args:
            values: Every named tensor, like `initial_values`.
            run_losses: Runs the loss of each of `TrainingGraph.each` on the arrays of one batch, fed to
                `TrainingGraph.feeds`; the last batch may be smaller than the others. Only graph programs call it: their
                losses are the whole model.

        Raises:
            ProgramError: The program raised, or its evaluation data are empty or endless.
        """
        ...

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics over the training batches of all workers; empty if the program has none, or in async mode.

        They begin anew at each multiple of `summaries.every_steps`, and where a checkpoint is restored.

        Args:
            values: Every tensor of `state` after a step, as the ps hold it.
        """
        ...


def planned(front: FrontEnd, job: Job) -> Layout:
    """The layout of a program's tensors on the ps of a job."""
    tensors = (front.parameters, front.state, front.frozen)
    return Layout.plan(*tensors, job.fleet.ps, job.update.bucket_bytes, front.tables, front.losses, front.embeddings)
