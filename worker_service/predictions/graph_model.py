"""The function of a graph program from features to predictions, with trained weights, in a session of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.layout import EmbeddingSpec, TensorSpec
from psfleet.tf.program_data import batches_explained
from psfleet.tf.server import session_config
from worker_service.frontends.evaluation_errors import evaluating
from worker_service.frontends.graph_tables import TableVariable
from worker_service.frontends.graph_variables import GLOBAL_STEP, is_named_as_step, own_variable, values_at_step
from worker_service.frontends.table_rows import SavedRows, TableUses
from worker_service.predictions.names import Naming, checked_predictions
from worker_service.predictions.weights import Weights

WHAT = "predict(features)"


class GraphModel:
    """See `Predictor`: the graph of the predictions, and an open session with the weights.

    Attributes:
        features: See `Predictor`.
        session: The session.
        feeds: A placeholder for each tensor of the features, in `tf.nest.flatten` order.
        variables: All variables of the weights, without tables, and the global step if `predict` reads it.
        initializer: Of the lookup tables of the program.
    """

    def __init__(self, program: GraphProgram, job: Job, weights: Weights, features: Any, named: Naming) -> None:
        """Builds the graph; arguments and errors as of `predictor`."""
        if program.predict is None:
            raise UsageError(f"program {job.program!r} has no predictions, expected GraphProgram(predict=...)")
        self._job = job
        self._embeddings = weights.embeddings
        self.features = features
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(job.train.seed)
            self.feeds = [v1.placeholder(spec.dtype, spec.shape) for spec in tf.nest.flatten(features)]
            variables, self._assignments = _variables(weights.tensors)
            self._step: Loaded = {}
            # TensorFlow's registry has weak references to the functions that read rows.
            self._rows = SavedRows(weights.embeddings)

            def make_step() -> Any:
                with tf.init_scope():
                    made, self._step = _variables({GLOBAL_STEP: np.zeros([], np.int64)})
                variables.update(made)
                return made[GLOBAL_STEP]

            getter = _getter(variables, _tables(weights.embeddings, self._rows), job, make_step)
            shapes = [feed.shape for feed in self.feeds]
            with batches_explained(shapes), v1.variable_scope("", custom_getter=getter), evaluating(job, WHAT):
                predictions = program.predict(tf.nest.pack_sequence_as(features, self.feeds))
            self.variables = list(variables.values())
            self._outputs = checked_predictions(predictions, job, named)
            self.initializer = v1.tables_initializer()
            others = v1.local_variables_initializer()
        self.session = v1.Session(graph=graph, config=session_config(job.device))
        with evaluating(job, WHAT):
            self.session.run([self.initializer, others])
        self.assign(weights)

    def outputs(self) -> dict[str, tf.Tensor]:
        """See `Predictor`."""
        return self._outputs

    def assign(self, weights: Weights) -> None:
        """See `Predictor`."""
        shapes = {name: feed.shape.as_list() for name, (feed, _) in self._assignments.items()}
        weights.require(shapes, self._embeddings)
        number = self._job.batch_number(weights.step)
        values = {GLOBAL_STEP: np.int64(number), **values_at_step(weights.frozen, weights.values, number)}
        with evaluating(self._job, WHAT):
            for name, (feed, assignment) in (self._assignments | self._step).items():
                self.session.run(assignment, {feed: values[name]})
        self._rows.use(weights.values)

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """See `Predictor`."""
        with evaluating(self._job, WHAT):
            found: dict[str, np.ndarray] = self.session.run(self._outputs, dict(zip(self.feeds, features, strict=True)))
        return found


Loaded = dict[str, tuple[tf.Tensor, tf.Operation]]
"""By the name of a variable: a placeholder and its assignment."""


def _variables(values: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Loaded]:
    """A variable for each tensor, and what assigns it: a graph holds at most 2 GB of constants."""
    named: dict[str, Any] = {}
    loaded: Loaded = {}
    for name, value in values.items():
        spec = TensorSpec(name, value.shape, value.dtype.name)
        named[name] = own_variable(spec, [v1.GraphKeys.GLOBAL_VARIABLES])
        feed = v1.placeholder(value.dtype, value.shape)
        loaded[name] = feed, named[name].assign(feed, read_value=False)
    return named, loaded


def _tables(embeddings: Sequence[EmbeddingSpec], rows: SavedRows) -> dict[str, TableVariable]:
    if not embeddings:
        return {}
    uses = TableUses(embeddings, rows, rows.at_step)

    def of_table(index: int) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda ids: uses.lookup(index, ids)

    return {
        spec.name: TableVariable(spec.name, (spec.rows, spec.width), of_table(index))
        for index, spec in enumerate(embeddings)
    }


def _getter(
    variables: Mapping[str, Any], tables: Mapping[str, TableVariable], job: Job, make_step: Callable[[], Any]
) -> Callable[..., Any]:
    """A custom getter of `get_variable` that returns the trained variables.

    Args:
        make_step: Adds TensorFlow's global step to `variables`: weights have none if the losses do not read it, or
            read it in another variable scope.
    """

    def get(getter: Callable[..., Any], name: str, shape: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        del getter
        collections = kwargs.get("collections") or ()
        variable = variables.get(name, tables.get(name))
        shape = tf.TensorShape(shape)
        if variable is None and is_named_as_step(name, collections) and shape == () and dtype == tf.int64:
            variable = variables[GLOBAL_STEP] if GLOBAL_STEP in variables else make_step()
        if variable is None or not shape.is_compatible_with(variable.shape):
            got = "missing" if variable is None else list(variable.shape)
            raise BadJobError(
                f"program {job.program!r}: {WHAT} gets variable {name} of shape {shape}, which is {got} in the weights"
            )
        return variable

    return get
