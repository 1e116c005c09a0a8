"""Traces one update of a Keras optimizer object on a flat vector of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras.src.optimizers.base_optimizer import BaseOptimizer

from psfleet.errors import ProgramError
from psfleet.layout import TensorSpec
from psfleet.tf.subgraph import subgraph
from psfleet.tf.traced_update import AFTER, GRADIENT, PARAMETERS, RATE, Scalar, TracedUpdate, scalar_node, slot_node
from worker_service import optimizer_variables
from worker_service.frontends.graph_import import transplant

_EXPECTED = "expected variables that build() makes with the shape of a parameter (float32), and numbers"


class OptimizerTrace:
    """An optimizer object, built for a vector and for copies of the model's tensors.

    Copies have the names and ranks of the tensors. Large ones are smaller.

    Args of the constructor:
        program: As in the job file, for messages.
        optimizer: It must not be built.
        parameters: All trained tensors of the model.

    Attributes:
        optimizer: The object.
        copies: Variables with random values.
    """

    def __init__(self, program: str, optimizer: Any, parameters: Sequence[TensorSpec]) -> None:
        random = np.random.default_rng(0)
        self.copies = optimizer_variables.copies(parameters, random)
        shapes = [tuple(copy.shape) for copy in self.copies]
        size = next(size for size in range(11, 12 + len(shapes)) if (size,) not in shapes)
        self.optimizer = optimizer
        self._who = f"program {program!r}: optimizer {type(optimizer).__name__}"
        # Not zeros: a slot that starts as a copy of the parameters must not look like one that starts at zero.
        self._flat = keras.Variable(random.normal(size=size), dtype="float32", name=optimizer_variables.FLAT)
        optimizer.build([self._flat, *self.copies])
        of_flat = [v for v in optimizer.variables if tuple(v.shape) == (size,) and v.dtype == "float32"]
        numbers = [v for v in optimizer.variables if v.shape.rank == 0 and v.dtype in ("float32", "int32", "int64")]
        numbers = [v for v in numbers if v is not optimizer._learning_rate]
        self._slots: dict[str, Any] = dict(zip(optimizer_variables.names(optimizer, of_flat), of_flat, strict=True))
        self._scalars: dict[str, Any] = dict(zip(optimizer_variables.names(optimizer, numbers), numbers, strict=True))

    def update(self) -> TracedUpdate:
        """The update of the vector; slots and scalars that it neither reads nor changes are left out.

        Raises:
            ProgramError: It uses another variable, changes no parameter, or a slot has different initial values.
            Exception: That of the optimizer's own code.
        """
        variables = {PARAMETERS: self._flat, **{slot_node(name): slot for name, slot in self._slots.items()}}
        variables |= {scalar_node(name): scalar for name, scalar in self._scalars.items()}
        vector, number = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
        specs = [vector if v.shape.rank else tf.TensorSpec([], v.dtype) for v in variables.values()]
        used: list[str] = []

        def function(gradient: tf.Tensor, rate: tf.Tensor, *before: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip(variables, before, strict=True))
            after = self._applied(gradient, rate, {node: (variables[node], value) for node, value in given.items()})
            if after[PARAMETERS] is given[PARAMETERS]:
                raise self._error("never changes a parameter: its update assigns nothing to the variable that it gets")
            # Assigned, not extended: TensorFlow may trace a function twice.
            used[:] = [node for node in given if after[node] is not given[node] or given[node].consumers()]
            return [after[node] for node in used]

        concrete = tf.function(function, autograph=False).get_concrete_function(vector, number, *specs)
        nodes = dict(zip([GRADIENT, RATE, *variables], concrete.graph.inputs, strict=False))
        return TracedUpdate(
            optimizer=type(self.optimizer).__name__,
            slots={name: self._initial(name) for name in self._slots if slot_node(name) in used},
            scalars={
                name: Scalar(scalar.dtype, scalar.numpy().item())
                for name, scalar in self._scalars.items()
                if scalar_node(name) in used
            },
            graph_def=self._serialized(concrete, nodes, used),
        )

    def _applied(
        self, gradient: tf.Tensor, rate: tf.Tensor, before: Mapping[str, tuple[Any, tf.Tensor]]
    ) -> dict[str, tf.Tensor]:
        """The values after one update, by node, of variables and their values before it."""
        scope = keras.StatelessScope()
        # Not by its constructor, which refuses shapes that are not known.
        scope.state_mapping = {id(variable): value for variable, value in before.values()}
        scope.state_mapping[id(self.optimizer._learning_rate)] = rate
        known = set(scope.state_mapping)
        with scope, self._without_strategy(), self._of_any_length():
            self.optimizer.apply_gradients([(gradient, self._flat)])
        for variable in self.optimizer.variables:
            if id(variable) in set(scope.state_mapping) - known:
                raise self._error(f"changes the variable {variable.path} of shape {list(variable.shape)}, {_EXPECTED}")
        after = {node: scope.get_current_value(variable) for node, (variable, _) in before.items()}
        for node, value in after.items():
            expected = before[node][1].shape
            if value.shape.rank != expected.rank:
                raise self._error(f"changes {node} to a tensor of shape {list(value.shape)}, expected {list(expected)}")
        return after

    @contextmanager
    def _of_any_length(self) -> Iterator[None]:
        """Hides the length of the vector: functions such as `zeros_like` would make constants of that length."""
        variables = [self._flat, *self._slots.values()]
        shape = self._flat._shape
        for variable in variables:
            variable._shape = (None,)
        try:
            yield
        finally:
            for variable in variables:
                variable._shape = shape

    @contextmanager
    def _without_strategy(self) -> Iterator[None]:
        """Replaces methods for `tf.distribute`, which need variables of TensorFlow, by those for any backend."""
        optimizer = self.optimizer

        def update_step(distribution: Any, gradients: Sequence[tuple[tf.Tensor, Any]], rate: Any) -> None:
            del distribution
            for gradient, _ in gradients:
                optimizer.update_step(gradient, self._flat, rate)

        replaced: dict[str, Callable[..., Any]] = {
            "assign": lambda variable, value: variable.assign(value),
            "assign_add": lambda variable, value: variable.assign_add(value),
            "assign_sub": lambda variable, value: variable.assign_sub(value),
            "_var_key": lambda variable: variable._value._unique_id,
            "_apply_weight_decay": lambda variables: BaseOptimizer._apply_weight_decay(optimizer, variables),
            "_distributed_tf_update_step": update_step,
        }
        # A method that the program overrides stays.
        names = [
            name for name in replaced if getattr(type(optimizer), name) is getattr(keras.optimizers.Optimizer, name)
        ]
        for name in names:
            object.__setattr__(optimizer, name, replaced[name])
        try:
            yield
        finally:
            for name in names:
                del optimizer.__dict__[name]

    def _initial(self, name: str) -> float:
        values = self._slots[name].numpy()
        if not np.isfinite(values).all() or (values != values[0]).any():
            raise self._error(
                f"has slot {name} with initial values that are not finite or not equal, such as random numbers or a "
                "copy of the parameters; expected one number"
            )
        return float(values[0])

    def _feed(self, captured: tf.Tensor) -> tf.Tensor:
        """A tensor that the update captures, in the default graph."""
        if captured.dtype in (tf.resource, tf.variant):
            raise self._error(f"uses a variable or table that is not among its variables, {_EXPECTED}")
        return tf.constant(captured.numpy())

    def _serialized(self, concrete: Any, nodes: Mapping[str, tf.Tensor], used: Sequence[str]) -> bytes:
        """A `GraphDef` as `TracedUpdate` describes it.

        Args:
            concrete: Returns the values after the update of the nodes in `used`.
            nodes: Inputs of the function by their names in the graph.
        """
        with tf.Graph().as_default() as graph:
            feeds = [(inner, v1.placeholder(inner.dtype, inner.shape, node)) for node, inner in nodes.items()]
            feeds += [(inner, self._feed(outer)) for outer, inner in concrete.graph.captures]
            after = transplant(concrete.graph, feeds, concrete.outputs)
            for node, value in zip(used, after, strict=True):
                tf.identity(value, f"{AFTER}{node}")
        wanted = {GRADIENT, RATE, *used, *(f"{AFTER}{node}" for node in used)}
        # A ps places them on devices of its own.
        found = subgraph(graph.as_graph_def(), wanted, on=lambda _: "")
        serialized: bytes = found.SerializeToString(deterministic=True)
        return serialized

    def _error(self, problem: str) -> ProgramError:
        return ProgramError(f"{self._who} {problem}")
