"""A program's step outside of any fleet: its parameters, state and frozen tensors are fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.layout import Layout
from worker_service.frontends import finite
from worker_service.frontends.interface import FrontEnd
from worker_service.frontends.table_rows import SavedRows


class LocalStep:
    """A program's step in a graph without a cluster, to which parameters, state and frozen tensors are fed.

    Args of the constructor:
        with_gradients: False: only the loss is needed; see `FrontEnd.build`.
        checks_finite: Whether the step fails if a tensor is not finite; see `finite.checked`.

    Attributes:
        graph: The graph.
        training: The step in it.
        initializer: Initializes its variables and tables.
    """

    def __init__(
        self, front_end: FrontEnd, layout: Layout, with_gradients: bool = True, checks_finite: bool = False
    ) -> None:
        self._layout = layout
        with tf.Graph().as_default() as self.graph:
            self._parameters = v1.placeholder(tf.float32, [layout.parameters.size])
            state = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.state.specs]
            frozen = [v1.placeholder(spec.dtype, spec.shape) for spec in layout.frozen.specs]
            self._others = [*state, *frozen]
            self._number = v1.placeholder_with_default(np.int64(0), [])
            self._rows = SavedRows(layout.embeddings)
            self.training = front_end.build(
                layout, [self._parameters], state, frozen, self._number, with_gradients=with_gradients, rows=self._rows
            )
            if checks_finite:
                first, *further = (finite.checked(each, layout, at) for at, each in enumerate(self.training.each))
                self.training = replace(first, further=tuple(further))
            variables = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            self.initializer = tf.group(*variables, v1.tables_initializer())
        # Calls may be many, and each added operation would stay.
        self.graph.finalize()

    def feeds(self, values: Mapping[str, np.ndarray]) -> dict[tf.Tensor, np.ndarray]:
        """Every named tensor of the model, by its placeholder; rows of tables are read from `values` from now on."""
        self._rows.use(values)
        layout = self._layout
        others = [values[spec.name] for spec in (*layout.state.specs, *layout.frozen.specs)]
        return {self._parameters: layout.parameters.pack(values)} | dict(zip(self._others, others, strict=True))

    def batch(self, batch: Sequence[np.ndarray], number: int = 0) -> dict[tf.Tensor, np.ndarray]:
        """The arrays of a batch, by their placeholders.

        Args:
            number: Of the microbatch, from which random numbers and TensorFlow's global step follow.
        """
        return {**dict(zip(self.training.feeds, batch, strict=True)), self._number: np.int64(number)}
