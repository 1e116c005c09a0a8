"""The Keras 3 front end: an eager model, traced as a pure function of the values on the ps."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import eager_mode

from psfleet.checkpoint.keras_names import distinct_variables, keras_names
from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import KerasProgram
from psfleet.job.user_code import user_code
from psfleet.layout import Layout, Losses, Tables, TensorSpec, state_order
from psfleet.tf.program_data import training_data
from worker_service.frontends import finite, flat, keras_checks, keras_parts, layer_constants, lookup_tables
from worker_service.frontends.custom_gradients import check_custom_gradients
from worker_service.frontends.graph_import import split, transplant
from worker_service.frontends.interface import Share, TrainingGraph
from worker_service.frontends.keras_evaluation import evaluate
from worker_service.frontends.keras_loss import loss_of
from worker_service.frontends.keras_tables import KerasTables
from worker_service.frontends.random_state import RandomState
from worker_service.frontends.sample_weights import SampleWeights
from worker_service.frontends.shares import keras_shares, shares_of, tensors_of
from worker_service.frontends.table_rows import Rows, SavedRows, TableUses, table_gradients
from worker_service.frontends.tracing import Scope, part_of, traced
from worker_service.frontends.training_metrics import TrainingMetrics
from worker_service.input_pipeline import batch_spec, evaluation_batches


class KerasFrontEnd:
    """A Keras program for one worker. TensorFlow's eager execution must be on, which is the default."""

    def __init__(self, program: KerasProgram, job: Job, num_shards: int, index: int) -> None:
        """Builds the model and traces its forward pass once, to separate state from frozen tensors.

        Raises:
            ProgramError: The program raised, or psfleet cannot train the model.
        """
        self._job = job
        self._index = index
        self._batch_spec = batch_spec(
            training_data(program, job, index % num_shards, num_shards), job, job.train.batch_size
        )
        keras_checks.check_examples(job.program, self._batch_spec)
        self._weights = SampleWeights(job.program, program.class_weight, self._batch_spec)
        self._tables = KerasTables(job)
        with self._tables.building():
            self._model = keras_parts.built_model(program, job)
        keras_checks.check_ranks(job.program, self._model, self._batch_spec)
        trained, others = distinct_variables(self._model)
        keras_checks.check_model(job.program, self._model, trained)
        self._specs = {
            id(variable): TensorSpec(name, tuple(variable.shape), variable.dtype)
            for variable, name in zip(trained + others, keras_names(trained + others), strict=True)
        }
        trained = self._tables.bind(self._model, trained, self._specs)
        self.embeddings = self._tables.specs
        if index == 0:
            keras_checks.warn_if_compiled(self._model, job)
        keras_checks.check_metrics(job.program, "metrics", program.metrics)
        keras_checks.check_metrics(job.program, "weighted_metrics", program.weighted_metrics)
        with user_code(job, "compile()"):
            metrics = {"metrics": program.metrics, "weighted_metrics": program.weighted_metrics}
            self._model.compile(loss=program.loss, **metrics, jit_compile=False)
        self._trained = trained
        self._metrics = TrainingMetrics(self._model, program, job)
        concrete, changed, draws = self._traced_forward(others)
        keras_checks.check_assigned(job.program, changed, trained)
        self._frozen = [variable for variable in others if all(variable is not other for other in changed)]
        self._tables.require_used()
        self._measured = self._metrics.variables(index)
        names = keras_names(trained + others + self._measured)[-len(self._measured) :] if self._measured else []
        self._specs |= {
            id(variable): TensorSpec(name, tuple(variable.shape), variable.dtype, is_saved=False)
            for variable, name in zip(self._measured, names, strict=True)
        }
        self._state = sorted(changed + self._measured, key=lambda variable: state_order(self._specs[id(variable)]))
        self._random = RandomState(self._state, draws, index)
        self._step: Any = None
        self.evaluation = evaluation_batches(program, job, self._batch_spec) if index == 0 else None
        self.parameters = tuple(self._specs[id(variable)] for variable in self._trained)
        self.state = tuple(self._specs[id(variable)] for variable in self._state)
        self.frozen = tuple(self._specs[id(variable)] for variable in self._frozen)
        lookups = lookup_tables.contents(self._model._flatten_layers(), concrete.graph.captures)
        self.tables: Tables = (*lookups, *layer_constants.fingerprints(concrete))
        self.losses: Losses = ()

    def of_worker(self, index: int) -> KerasFrontEnd:
        """See `FrontEnd`."""
        other = copy.copy(self)
        other._index, other._random = index, self._random.of_worker(index)
        return other

    def initial_values(self) -> dict[str, np.ndarray]:
        """See `FrontEnd`."""
        named = {spec.name: variable.numpy() for spec, variable in self._model_variables(self._trained + self._state)}
        constants = {spec.name: variable.numpy() for spec, variable in self._model_variables(self._frozen)}
        specs = [self._specs[id(variable)] for variable in self._measured]
        zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
        return finite.checked_values(self._job.program, named) | constants | zeros

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
        """See `FrontEnd`; the gradients are always there."""
        del with_gradients
        source = rows or SavedRows(self.embeddings)
        # Not tf.init_scope, the public way to leave a graph: it stops every gradient tape inside it.
        with eager_mode():
            spec = part_of(self._batch_spec, towers)
            self._step, shares = self._trace_step(layout, spec, towers, source)
        graph = self._step.graph
        feeds = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in tf.nest.flatten(spec)]
        captured = [lookup_tables.constant(outer, inner) for outer, inner in graph.captures]
        number = tf.constant(0, tf.int64) if number is None else number
        at_step = [source.at_step] if self.embeddings else []
        values = [*flat.slices(layout.parameters, parameters), number, *state, *frozen, *at_step, *feeds, *captured]
        inputs = list(zip(graph.inputs, values, strict=True))
        loss, *rest = transplant(graph, inputs, [*graph.outputs, *graph.control_outputs, *tensors_of(shares)])
        gradients, new_state, others = split(rest, len(self._trained), len(self._state))
        of_tables, updates, of_shares = split(others, 2 * len(self.embeddings), len(graph.control_outputs))
        tables = table_gradients(self.embeddings, of_tables)
        return TrainingGraph(
            tuple(feeds), loss, gradients, new_state, updates, None, shares=shares_of(of_shares), tables=tables
        )

    def evaluate(
        self, values: Mapping[str, np.ndarray], run_losses: Callable[[Sequence[np.ndarray]], Sequence[float]]
    ) -> dict[str, float]:
        """See `FrontEnd`: Keras' own `evaluate`, in this process; `run_losses` is not called."""
        del run_losses
        if self.evaluation is None:
            return {}
        with eager_mode():
            for spec, variable in self._model_variables(self._trained + self._state + self._frozen):
                variable.assign(values[spec.name])
            with self._tables.evaluating(values):
                return evaluate(self._model, self.evaluation, self._job)

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`."""
        if not self._measured:
            return {}
        means = [values[self._specs[id(variable)].name] for variable in self._measured]
        return self._metrics.results(self._measured, means)

    def _model_variables(self, variables: Sequence[Any]) -> list[tuple[TensorSpec, Any]]:
        """Those of the variables that are the model's, and not a metric's, with their specs."""
        pairs = [(self._specs[id(variable)], variable) for variable in variables]
        return [(spec, variable) for spec, variable in pairs if spec.is_saved]

    def _traced_forward(self, others: Sequence[Any]) -> tuple[Any, list[Any], Counter[int]]:
        """The forward pass, traced; the variables that it changes; how often it assigns each, by id."""
        variables = [*self._trained, *others]
        changed: list[Any] = []
        draws: Counter[int] = Counter()
        # Creates Keras' global seed generator here: in the trace, its first value would be a constant of every step.
        keras.random.uniform(())

        def forward(values: Any, batch: Any) -> tf.Tensor:
            nonlocal draws
            scope, loss, before = self._forward(variables, values, batch)
            draws = scope.num_updates
            # Assigned, not extended: a function whose first trace creates variables (a metric's) is traced twice.
            changed[:] = [each for each in variables if scope.get_current_value(each) is not before[id(each)]]
            return loss

        specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        concrete = traced(forward, specs, self._batch_spec, self._job, self._index)
        return concrete, changed, draws

    def _trace_step(self, layout: Layout, batch_spec: Any, towers: int, rows: Rows) -> tuple[Any, list[Share]]:
        """A concrete function of parameters, number, state, frozen and batch: loss, gradients and new state.

        With tables the local step follows the frozen tensors, and ids and gradients of rows follow the new state. With
        the shares of a tower, whose tensors are in its graph.
        """
        shares: list[Share] = []
        count = len(self._trained)

        def step(given: Any, batch: Any) -> tuple[tf.Tensor, ...]:
            parameters, number, others = given[:count], given[count], given[count + 1 :]
            state, frozen = others[: len(self._state)], others[len(self._state) :][: len(self._frozen)]
            with tf.GradientTape() as tape:
                tape.watch(parameters)
                uses = TableUses(self.embeddings, rows, given[-1], tape.watch)
                values = [*parameters, *self._at_start(state, number), *frozen]
                with keras_shares(towers, self._job.program) as scaling, self._tables.reading(uses):
                    scope, loss, _ = self._forward(self._trained + self._state + self._frozen, values, batch)
            shares[:] = scaling
            names = [*(spec.name for spec in self.parameters), *uses.names]
            check_custom_gradients(self._job.program, loss, names, [*parameters, *uses.rows])
            found = keras_parts.gradients(tape, loss, [*parameters, *uses.rows])
            flat.require_any(self._job.program, "the loss of the model", found)
            gradients = flat.dense(layout.parameters.specs, found[:count])
            new_state = [scope.get_current_value(variable) for variable in self._state]
            return loss, *gradients, *self._random.of_chief(new_state), *uses.gradients(found[count:])

        specs = [tf.TensorSpec(spec.shape, tf.float32) for spec in layout.parameters.specs]
        specs += [tf.TensorSpec([], tf.int64)]
        specs += [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._state + self._frozen]
        specs += [tf.TensorSpec([], tf.int64)] if self.embeddings else []
        return traced(step, specs, batch_spec, self._job, self._index), shares

    def _at_start(self, state: Sequence[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """The state with which this worker's step begins, from that of the ps."""
        return [
            value if self._specs[id(variable)].is_saved else self._metrics.at_start(value, number)
            for variable, value in zip(self._state, self._random.of_step(state, number), strict=True)
        ]

    def _forward(
        self, variables: Sequence[Any], values: Sequence[tf.Tensor], batch: Any
    ) -> tuple[Scope, tf.Tensor, dict[int, tf.Tensor]]:
        """Runs the model and its loss as Keras' train_step does, with `values` in place of `variables`.

        Returns:
            The scope, which has each variable's new value; the loss, `[]` float32; each variable's old value by id.
        """
        model, (x, y, weight) = self._model, self._weights.unpacked(batch)
        mapping = list(zip(variables, values, strict=True))
        given = set(map(id, variables))
        unused = [variable for variable in self._metrics.all_variables() if id(variable) not in given]
        mapping += [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in unused]
        with Scope(mapping, collect_losses=True) as scope:
            before = {id(variable): scope.get_current_value(variable) for variable in variables}
            takes_training = "training" in model.call_signature_parameters
            y_pred = model(x, training=True) if takes_training else model(x)
            loss = loss_of(model, x, y, y_pred, weight)
            self._metrics.update(scope, x, y, y_pred, weight, loss)
        if loss.shape.rank != 0:
            shape = list(loss.shape)
            raise ProgramError(f"program {self._job.program!r}: the loss has shape {shape}, expected a scalar")
        return scope, tf.cast(loss, tf.float32), before
