"""The TensorFlow 1 front end: a function that builds a loss from `tf.compat.v1.get_variable`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.job.user_code import user_code
from psfleet.layout import Layout, Losses, Tables, TensorSpec, state_order
from psfleet.layout.buckets import specs_of_loss
from psfleet.tf.program_data import batches_explained, training_data
from worker_service.frontends import finite, flat, graph_variables
from worker_service.frontends.custom_gradients import check_custom_gradients
from worker_service.frontends.graph_checks import check_variables
from worker_service.frontends.graph_evaluation import mean_losses
from worker_service.frontends.graph_import import split, transplant
from worker_service.frontends.graph_tables import GraphTables
from worker_service.frontends.interface import TrainingGraph
from worker_service.frontends.shares import graph_shares, scaled
from worker_service.frontends.table_rows import Rows, SavedRows, TableGradient, TableUses, table_gradients
from worker_service.input_pipeline import batch_spec, evaluation_batches


class GraphFrontEnd:
    """A graph program for one worker.

    The loss is built twice, each time in a graph of its own: first with real variables, to learn their names and
    initial values, then with tensors that are given in place of the trainable ones. Several losses are built in
    their order in the same graph, as in a TensorFlow 1 program: they share variables under TensorFlow's rules.
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
        self._tables = GraphTables(job)

        def record(getter: Callable[..., Any], name: str, **kwargs: Any) -> Any:
            if (table := self._tables.variable(name, kwargs)) is not None:
                return table
            variables[name] = getter(name, **{**kwargs, "partitioner": None})
            return variables[name]

        with tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(job.train.seed)
            batch = self._placeholders()
            for name in program.named_losses:
                self._loss(name, batch, record)
            self.embeddings = self._tables.complete()
            check_variables(job.program, graph, variables, job.tables)
            self._initial = graph_variables.initialized(graph, variables, job)
        named = [(graph_variables.spec_of(name, variable), variable) for name, variable in variables.items()]
        self.parameters, self.losses = self._by_loss([spec for spec, variable in named if variable.trainable])
        others = {spec: variable for spec, variable in named if not variable.trainable}
        self.frozen = tuple(spec for spec, variable in others.items() if graph_variables.is_frozen(spec, variable))
        self.state = tuple(sorted((spec for spec in others if spec not in self.frozen), key=state_order))
        self.tables: Tables = ()
        self.evaluation = evaluation_batches(program, job, self._batch_spec) if index == 0 else None

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
        parameters: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor],
        number: tf.Tensor | None = None,
        with_gradients: bool = True,
        towers: int = 1,
        rows: Rows | None = None,
    ) -> TrainingGraph:
        """See `FrontEnd`. Non-trainable variables are this worker's own; each step first assigns their values."""
        with tf.Graph().as_default() as self._graph:
            tf.compat.v1.set_random_seed(self._job.train.seed + self._index)
            trained = [
                tf.compat.v1.placeholder(tf.float32, spec.shape, name=flat.operation_name(spec))
                for spec in layout.parameters.specs
            ]
            specs = (*layout.state.specs, *layout.frozen.specs)
            others = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            batch = self._placeholders()
            # Not without tables: one more operation would change the seeds of the program's.
            at_step = [tf.compat.v1.placeholder(tf.int64, [])] if self.embeddings else []
            uses = TableUses(self.embeddings, rows or SavedRows(self.embeddings), *at_step)
            steps = self._steps(layout, trained, others, batch, uses, with_gradients)
        feeds = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in batch]
        fixed = graph_variables.at_step_of(layout.frozen.specs, frozen, number, self._job.train.accumulate)
        given = [*flat.slices(layout.parameters, parameters), *state, *fixed, *feeds]
        inputs = list(zip([*trained, *others, *batch], given, strict=True))
        shares = graph_shares(self._program, self._job, towers, tf.nest.pack_sequence_as(self._batch_spec, feeds))
        inputs += [(tensor, uses.source.at_step) for tensor in at_step]
        summaries = [] if steps[0].summaries is None else [steps[0].summaries]
        # With tables there is one loss.
        of_tables = [tensor for table in steps[0].tables for tensor in (table.ids, table.values)]
        wanted = [[each.loss, *each.gradients, *each.new_state, *of_tables, *each.updates] for each in steps]
        copies = transplant(self._graph, inputs, [*itertools.chain(*wanted), *summaries])
        summary = copies.pop() if summaries else None
        found = []
        for step, parts in zip(steps, wanted, strict=True):
            (loss, *rest), copies = copies[: len(parts)], copies[len(parts) :]
            gradients, new_state, last = split(rest, len(step.gradients), len(step.new_state))
            tensors, _, updates = split(last, len(of_tables), 0)
            for share in shares:
                loss = scaled(loss, share, towers)
                gradients = tuple(scaled(gradient, share, towers) for gradient in gradients)
            tables = table_gradients(self.embeddings, tensors) if tensors else ()
            found.append(TrainingGraph(tuple(feeds), loss, gradients, new_state, updates, summary, tables=tables))
        return replace(found[0], further=tuple(found[1:]), shares=shares)

    def evaluate(
        self, values: Mapping[str, np.ndarray], run_losses: Callable[[Sequence[np.ndarray]], Sequence[float]]
    ) -> dict[str, float]:
        """See `FrontEnd`: the mean loss of an example, by `run_losses`: `loss`, or `NAME_loss` of each of several."""
        del values
        if self.evaluation is None:
            return {}
        return mean_losses(self.evaluation, self._job, list(self._program.named_losses), run_losses)

    def training_metrics(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `FrontEnd`: a graph program has none."""
        del values
        return {}

    def _placeholders(self) -> list[tf.Tensor]:
        return [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in tf.nest.flatten(self._batch_spec)]

    def _loss(self, name: str, batch: Sequence[tf.Tensor], getter: Callable[..., Any]) -> tf.Tensor:
        """Calls the function of a loss under a root scope whose variables come from `getter`: `[]` float32."""
        called = f"{name}: loss(batch)" if name else "loss(batch)"
        shapes = [tensor.shape for tensor in batch]
        scope = tf.compat.v1.variable_scope("", custom_getter=getter)
        with batches_explained(shapes), scope, user_code(self._job, called):
            loss = self._program.named_losses[name](tf.nest.pack_sequence_as(self._batch_spec, batch))
        if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating or loss.shape.rank not in (0, None):
            got = repr(loss) if not isinstance(loss, tf.Tensor) else f"{loss.dtype.name} of shape {loss.shape}"
            raise self._error(f"{called} returned {got}, expected a scalar float tensor")
        return tf.cast(tf.ensure_shape(loss, []), tf.float32)

    def _by_loss(self, trained: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], Losses]:
        """The trainable tensors, those of each of several losses together; and the number of those of each."""
        scopes = self._program.scopes
        if not scopes:
            return tuple(trained), ()
        found = {name: [spec for spec in trained if spec.name.startswith(scope)] for name, scope in scopes.items()}
        for spec in trained:
            if not spec.name.startswith(tuple(scopes.values())):
                names = ", ".join(scopes.values())
                raise self._error(
                    f"trainable variable {spec.name} is under no scope of a loss, expected one of {names}"
                )
        for name, specs in found.items():
            if not specs:
                raise self._error(
                    f"loss {name} has no trainable variable under its scope {scopes[name]}, expected at least one"
                )
        counts = tuple((name, len(specs)) for name, specs in found.items())
        return tuple(itertools.chain(*found.values())), counts

    def _steps(
        self,
        layout: Layout,
        parameters: Sequence[tf.Tensor],
        others: Sequence[tf.Tensor],
        batch: Sequence[tf.Tensor],
        uses: TableUses,
        with_gradients: bool,
    ) -> list[TrainingGraph]:
        """The step of each loss in the program's own graph; `others` are values of state and of frozen tensors."""
        specs = (*layout.state.specs, *layout.frozen.specs)
        variables = [graph_variables.own_variable(spec) for spec in specs]
        named = {spec.name: tensor for spec, tensor in zip(layout.parameters.specs, parameters, strict=True)}
        named |= self._tables.given(uses.lookup)
        given = graph_variables.GivenVariables(
            named | {spec.name: variable for spec, variable in zip(specs, variables, strict=True)}, set(named)
        )
        steps = []
        # One assignment for all losses: a step runs one of them, on the values that are given.
        assigned = [variable.assign(value).op for variable, value in zip(variables, others, strict=True)]
        for index, name in enumerate(self._program.named_losses):
            before = tf.compat.v1.get_collection(graph_variables.Collections.UPDATE_OPS)
            with tf.control_dependencies(assigned):
                loss = self._loss(name, batch, given)
                own = [named[spec.name] for spec in specs_of_loss(layout.parameters, index)]
                gradients, tables = self._gradients(layout, index, loss, own, uses) if with_gradients else ((), ())
            updates = tf.compat.v1.get_collection(graph_variables.Collections.UPDATE_OPS)[len(before) :]
            updates = [getattr(update, "op", update) for update in updates]
            with tf.control_dependencies([loss, *updates]):
                new_state = self._new_state(layout, name, variables, others)
            steps.append(TrainingGraph(tuple(batch), loss, gradients, new_state, tuple(updates), None, tables=tables))
        summaries = tf.compat.v1.summary.merge_all()
        return [replace(step, summaries=summaries) for step in steps]

    def _gradients(
        self, layout: Layout, index: int, loss: tf.Tensor, parameters: Sequence[tf.Tensor], uses: TableUses
    ) -> tuple[tuple[tf.Tensor, ...], tuple[TableGradient, ...]]:
        """The gradient of a loss with respect to the parameters that it moves, each as `[size]`, and to rows."""
        specs = specs_of_loss(layout.parameters, index)
        moved = [*parameters, *uses.rows]
        check_custom_gradients(self._job.program, loss, [*(spec.name for spec in specs), *uses.names], moved)
        found = tf.gradients(loss, moved)
        name = list(self._program.named_losses)[index]
        loss_name = f"loss {name}" if name else "loss(batch)"
        flat.require_any(self._job.program, loss_name, found, self._program.scopes.get(name, ""))
        gradients = found[: len(parameters)]
        tables = table_gradients(self.embeddings, uses.gradients(found[len(parameters) :]))
        return tuple(flat.dense(specs, gradients)), tables

    def _new_state(
        self, layout: Layout, name: str, variables: Sequence[Any], others: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, ...]:
        """State after a step of a loss; a tensor under the scope of another loss has the value that was given."""
        foreign = tuple(scope for other, scope in self._program.scopes.items() if other != name)
        return tuple(
            tf.identity(value) if spec.name.startswith(foreign) else variable.read_value()
            for spec, variable, value in zip(layout.state.specs, variables, others, strict=False)
        )

    def _error(self, message: str) -> ProgramError:
        return ProgramError(f"program {self._job.program!r}: {message}")
