"""The TensorFlow 1 front end: a function that builds a loss from `tf.compat.v1.get_variable`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.job.user_code import user_code
from psfleet.layout import Layout, Tables, TensorSpec, state_order
from psfleet.tf.program_data import batches_explained, training_data
from worker_service.frontends import finite, flat
from worker_service.frontends.constants import is_constant
from worker_service.frontends.graph_import import split, transplant
from worker_service.frontends.interface import TrainingGraph
from worker_service.input_pipeline import batch_spec, evaluation_batches, read

_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")
_Collections = tf.compat.v1.GraphKeys


class GraphFrontEnd:
    """A graph program for one worker.

    The loss is built twice, each time in a graph of its own: first with real variables, to learn their names and
    initial values, then with slices of the flat vector in place of the trainable ones.
    """

    def __init__(self, program: GraphProgram, job: Job, num_shards: int, index: int) -> None:
        """Builds the loss with real variables and runs their initializers.

        Raises:
            ProgramError: The program raised, has no trainable parameters, or its loss is none.
        """
        self._program = program
        self._job = job
        self._index = index
        self._batch_spec = batch_spec(training_data(program, job, index % num_shards, num_shards), job, None)
        self._graph: tf.Graph | None = None
        variables: dict[str, Any] = {}

        def record(getter: Callable[..., Any], name: str, **kwargs: Any) -> Any:
            variables[name] = getter(name, **{**kwargs, "partitioner": None})
            return variables[name]

        with tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(job.train.seed)
            self._loss(self._placeholders(), record)
            self._check(graph, variables)
            self._initial = _initialized(graph, variables)
        self.parameters = tuple(_spec(name, variable) for name, variable in variables.items() if variable.trainable)
        others = {_spec(name, variable): variable for name, variable in variables.items() if not variable.trainable}
        self.frozen = tuple(spec for spec, variable in others.items() if is_constant(variable))
        self.state = tuple(sorted((spec for spec in others if spec not in self.frozen), key=state_order))
        self.tables: Tables = ()
        self._evaluation = evaluation_batches(program, job, self._batch_spec) if index == 0 else None

    def of_worker(self, index: int) -> GraphFrontEnd:
        """See `FrontEnd`."""
        other = copy.copy(self)
        other._index = index
        return other

    def initial_values(self) -> dict[str, np.ndarray]:
        """See `FrontEnd`."""
        constants = {spec.name: self._initial[spec.name] for spec in self.frozen}
        named = {name: value for name, value in self._initial.items() if name not in constants}
        return finite.checked_values(self._job.program, named) | constants

    def build(
        self,
        layout: Layout,
        parameters: tf.Tensor,
        state: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor],
        number: tf.Tensor | None = None,
        with_gradients: bool = True,
    ) -> TrainingGraph:
        """See `FrontEnd`. Non-trainable variables are this worker's own; each step first assigns their values."""
        del number
        with tf.Graph().as_default() as self._graph:
            tf.compat.v1.set_random_seed(self._job.train.seed + self._index)
            vector = tf.compat.v1.placeholder(tf.float32, [layout.parameters.size])
            specs = (*layout.state.specs, *layout.frozen.specs)
            others = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            batch = self._placeholders()
            step = self._step(layout, vector, others, batch, with_gradients)
        feeds = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in batch]
        inputs = list(zip([vector, *others, *batch], [parameters, *state, *frozen, *feeds], strict=True))
        summaries = [] if step.summaries is None else [step.summaries]
        wanted = [step.loss, *step.gradients, *step.new_state, *step.updates, *summaries]
        loss, *rest = transplant(self._graph, inputs, wanted)
        summary = rest.pop() if summaries else None
        gradients, new_state, updates = split(rest, len(step.gradients), len(step.new_state))
        return TrainingGraph(tuple(feeds), loss, gradients, new_state, updates, summary)

    def evaluate(
        self, values: Mapping[str, np.ndarray], run_loss: Callable[[Sequence[np.ndarray]], float]
    ) -> dict[str, float]:
        """See `FrontEnd`: the mean loss of an example, by `run_loss`; `values` is not read."""
        del values
        if self._evaluation is None:
            return {}
        total, num_examples = 0.0, 0
        with tf.init_scope():
            batches = read(self._evaluation, self._job, "reading the evaluation data")
            for batch in batches:
                total += run_loss(batch) * len(batch[0])
                num_examples += len(batch[0])
        return {"loss": total / num_examples}

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`: a graph program has none."""
        del values
        return {}

    def _placeholders(self) -> list[tf.Tensor]:
        return [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in tf.nest.flatten(self._batch_spec)]

    def _loss(self, batch: Sequence[tf.Tensor], getter: Callable[..., Any]) -> tf.Tensor:
        """Calls the program's function under a root scope whose variables come from `getter`: `[]` float32."""
        shapes = [tensor.shape for tensor in batch]
        scope = tf.compat.v1.variable_scope("", custom_getter=getter)
        with batches_explained(shapes), scope, user_code(self._job, "loss(batch)"):
            loss = self._program.loss(tf.nest.pack_sequence_as(self._batch_spec, batch))
        if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating or loss.shape.rank not in (0, None):
            got = repr(loss) if not isinstance(loss, tf.Tensor) else f"{loss.dtype.name} of shape {loss.shape}"
            raise self._error(f"loss(batch) returned {got}, expected a scalar float tensor")
        return tf.cast(tf.ensure_shape(loss, []), tf.float32)

    def _step(
        self,
        layout: Layout,
        vector: tf.Tensor,
        others: Sequence[tf.Tensor],
        batch: Sequence[tf.Tensor],
        with_gradients: bool,
    ) -> TrainingGraph:
        """The step in the program's own graph; `others` are the values of state and of frozen tensors."""
        parameters = flat.slices(layout.parameters, vector)
        specs = (*layout.state.specs, *layout.frozen.specs)
        variables: list[Any] = [
            tf.compat.v1.Variable(
                tf.zeros(spec.shape, spec.dtype), trainable=False, collections=[], name=spec.name, use_resource=True
            )
            for spec in specs
        ]
        named = {spec.name: tensor for spec, tensor in zip(layout.parameters.specs, parameters, strict=True)}
        named |= {spec.name: variable for spec, variable in zip(specs, variables, strict=True)}
        with tf.control_dependencies(
            [variable.assign(value).op for variable, value in zip(variables, others, strict=True)]
        ):
            loss = self._loss(batch, _GivenVariables(named, {spec.name for spec in layout.parameters.specs}))
            gradients = flat.dense(layout.parameters, tf.gradients(loss, parameters)) if with_gradients else []
        updates = [getattr(update, "op", update) for update in tf.compat.v1.get_collection(_Collections.UPDATE_OPS)]
        with tf.control_dependencies([loss, *updates]):
            new_state = tuple(variable.read_value() for variable in variables[: len(layout.state.specs)])
        summaries = tf.compat.v1.summary.merge_all()
        return TrainingGraph(tuple(batch), loss, tuple(gradients), new_state, tuple(updates), summaries)

    def _check(self, graph: tf.Graph, variables: Mapping[str, Any]) -> None:
        for operation in graph.get_operations():
            if operation.type in _VARIABLE_OPS and operation.name not in variables:
                raise self._error(f"variable {operation.name} is not made by tf.compat.v1.get_variable")
        if graph.get_collection(_Collections.TABLE_INITIALIZERS):
            raise self._error("loss(batch) uses a lookup table; expected it in the data set")
        if not any(variable.trainable for variable in variables.values()):
            raise self._error("loss(batch) has no trainable parameters, expected at least one")
        for name, variable in variables.items():
            if variable.trainable and variable.dtype.base_dtype != tf.float32:
                raise self._error(f"trainable variable {name} is {variable.dtype.base_dtype.name}, expected float32")
            if not variable.shape.is_fully_defined() or variable.dtype.base_dtype == tf.string:
                got = f"{variable.dtype.base_dtype.name} of shape {variable.shape}"
                raise self._error(f"variable {name} is {got}, expected numbers and a shape that is fully defined")
            if getattr(variable, "constraint", None) is not None:
                raise self._error(f"variable {name} has a constraint, which no ps applies")

    def _error(self, message: str) -> ProgramError:
        return ProgramError(f"program {self._job.program!r}: {message}")


class _GivenVariables:
    """A custom getter: returns given tensors and variables by name, and fills collections like TensorFlow."""

    def __init__(self, named: Mapping[str, Any], trained: set[str]) -> None:
        self._named = named
        self._trained = trained
        self._seen: set[str] = set()

    def __call__(self, getter: Callable[..., Any], name: str, **kwargs: Any) -> Any:
        """The tensor or variable of that name."""
        del getter
        if name not in self._named:
            raise ProgramError(
                f"loss(batch) gets variable {name} in its second call and not in its first, expected the same variables"
            )
        value = self._named[name]
        if name not in self._seen:
            self._seen.add(name)
            self._collect(name, value, kwargs.get("regularizer"), kwargs.get("collections"))
        return value

    def _collect(self, name: str, value: Any, regularizer: Any, collections: Sequence[str] | None) -> None:
        keys = set(collections or [_Collections.GLOBAL_VARIABLES])
        if name in self._trained:
            keys.add(_Collections.TRAINABLE_VARIABLES)
        tf.compat.v1.add_to_collections(keys, value)
        penalty = regularizer(value) if regularizer else None
        if penalty is not None:
            tf.compat.v1.add_to_collection(_Collections.REGULARIZATION_LOSSES, penalty)


def _spec(name: str, variable: Any) -> TensorSpec:
    return TensorSpec(name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name)


def _initialized(graph: tf.Graph, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Runs the initializers of all variables, in a session of this process."""
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(tf.compat.v1.variables_initializer(list(variables.values())))
        values: dict[str, np.ndarray] = session.run(dict(variables))
    return values
