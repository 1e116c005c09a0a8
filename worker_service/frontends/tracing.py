"""Traces functions of a Keras model as graphs without variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.user_code import user_code
from psfleet.tf.global_seed import trace_seed
from psfleet.tf.inlined import inlined_functions
from psfleet.tf.program_data import batches_explained
from worker_service.frontends import lookup_tables


class Scope(keras.StatelessScope):
    """A scope in which no gradient flows through a value that was assigned to a variable, as in an eager model.

    Attributes:
        num_updates: How often each variable was assigned, by id.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_updates: Counter[int] = Counter()
        self._graph = tf.compat.v1.get_default_graph()

    def set_zeros(self, variables: Sequence[Any]) -> None:
        """Gives variables that were made in the scope the value zero."""
        self.state_mapping |= {id(variable): tf.zeros(variable.shape, variable.dtype) for variable in variables}

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        """Is called by `keras.Variable.assign`.

        Raises:
            ValueError: In a graph inside of that in which the scope was made, whose values end with it.
        """
        variable, value = update
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                f"{variable.path} is assigned inside of a loop or a branch of the model, expected outside: "
                "a recurrent layer with unroll=True has no loop"
            )
        self.num_updates[id(variable)] += 1
        super().add_update((variable, tf.stop_gradient(value)))


def part_of(batch_spec: Any, towers: int) -> Any:
    """The structure of one tower's part of a batch: `[batch / towers, ...]` for each tensor `[batch, ...]`."""

    def part(spec: tf.TensorSpec) -> tf.TensorSpec:
        if spec.shape.rank is None:
            return spec
        return tf.TensorSpec([spec.shape[0] // towers, *spec.shape[1:]], spec.dtype)

    return batch_spec if towers == 1 else tf.nest.map_structure(part, batch_spec)


def traced(
    function: Callable[[Any, Any], Any], specs: Sequence[tf.TensorSpec], batch_spec: Any, job: Job, index: int
) -> Any:
    """The concrete function of a function of tensors and a batch.

    Args:
        specs: Of the tensors.
        batch_spec: The structure of the batch.
        index: Of the worker, for the seed of random operations that have none.

    Raises:
        ProgramError: The program raised, or the function captures a resource other than a filled lookup table.
    """
    seed = trace_seed(job.train.seed + index, job.deadlines.slow_secs)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, batch_spec)
    with seed, batches_explained(shapes), inlined_functions(), user_code(job, "the model's forward pass or loss"):
        concrete = tf.function(function, autograph=False).get_concrete_function(list(specs), batch_spec)
    for outer, inner in concrete.graph.captures:
        if outer.dtype in (tf.resource, tf.variant) and not lookup_tables.is_read_table(inner):
            names = [variable.name for variable in concrete.graph.variables if variable.handle is outer]
            what = f"variable {names[0]}" if names else f"a resource in {inner.consumers()[0].name}"
            raise ProgramError(
                f"program {job.program!r}: the forward pass uses {what}, which is not a variable of the model; "
                "expected lookup tables that it only reads, outside of loops and functions, and random layers with a "
                "keras.random.SeedGenerator of their own"
            )
        if outer.dtype == tf.resource and lookup_tables.is_empty(outer):
            raise ProgramError(
                f"program {job.program!r}: a lookup table of the forward pass, read by {inner.consumers()[0].name}, is "
                "empty, expected a layer that has a vocabulary: from its constructor, or from adapt() in model()"
            )
    return concrete
