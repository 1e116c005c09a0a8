"""One training step as a graph: gradients of the local parameters, push, token and pull in one `Session.run`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.layout.buckets import loss_names, loss_order
from psfleet.tf import byte_vectors, container_name, worker_job
from psfleet.tf.optimizer_slots import OptimizerSlots, exchanged_slots
from psfleet.tf.parts import building
from psfleet.tf.traced_update import TracedUpdate
from psfleet.tf.waits import waits_of
from worker_service.abandonment import Abandonment, may_abandon_steps
from worker_service.connections import Connections
from worker_service.direct import DirectPart, can_be_direct
from worker_service.exchanges import StepExchanges, exchanges_of
from worker_service.frontends.interface import StepBuilder, TrainingGraph
from worker_service.local_optimizer import LocalOptimizer
from worker_service.local_parameters import LocalParameters
from worker_service.loss_step import KeptGradient, LossStep, local_variable, loss_step
from worker_service.pulled import Pulled
from worker_service.push_pull import Exchange
from worker_service.table_exchange import RowsOnPs


class StepGraph:
    """A worker's graph for one generation of a run.

    Attributes:
        graph: The graph; every other attribute is part of it.
        feeds: Placeholders of a batch.
        connections: With the ps of other processes, for the exchanges of steps; None: TensorFlow's servers make them.
        session_number: int64 scalar placeholder, the number of `Connections.open`; None without connections.
        local_step: int64 scalar placeholder: the lowest global step of the local parameters. In async mode each ps
            gets the global step of its own shard instead, as this worker has pulled it.
        number: int64 scalar placeholder: the number of the batch, and of its gradient.
        microbatch: int64 scalar placeholder: the number of the microbatch, of which each batch has `train.accumulate`;
            without accumulation that is `number`.
        accumulate: For each loss a float32 scalar: that of a microbatch whose gradient is added to a local sum, which
            begins anew with the first of a batch; changes the local state. Empty without accumulation.
        local_update: float32 scalar, averaging mode: the loss of a batch with which the local parameters, slots and
            state are updated, without the ps. None in the other modes.
        steps: Of each loss; trains: the loss (float32 scalar), and global step and final step of each segment of all
            ps (int64 `[num_segments, 2]`). In averaging mode there is one, which only ends a round, and has no loss.
        abandonment: Ends a step early; None: the job's workers finish each step that they have begun.
        order: The losses of consecutive gradients, see `loss_order`.
        loss_names: Of all losses; an empty one if there is one loss.
        pull: Reads the parameters at `local_step` without waiting: global step, final step and started step of each
            segment of all ps (int64 `[num_segments, 3]`). See `Exchange.pull`.
        summaries: `[]` string, the program's own summaries; None if it has none.
        wants_norm: bool scalar placeholder: whether a step computes `gradient_norm`, by default not; None if all or
            none do.
        gradient_norm: float32 variable: the global norm of the newest gradient before it was clipped; if it is not
            clipped, NaN unless `wants_norm` was true, and None in workers other than the chief.
        gradients: float32 variables `[size]` for each of `layout.parameters.specs`: the chief's newest gradient of the
            loss that moves it, with accumulation the mean over the microbatches, before it was clipped. Empty without
            `summaries.gradient_histograms`, and in other workers.
        load_frozen: Copies the frozen weights from the ps.
        parameters: float32 variables, the local copy; see `LocalParameters`.
        state: uint8 `[layout.state.size]`, the local copy: floating point tensors as of the parameters' step, and all
            others as this worker's own steps have changed them since it read those of the ps.
        frozen: uint8 `[layout.frozen.size]`, the local copy.
        direct: For a session of this process alone, which then runs the steps; None: they need that on its server.
        worker_job: The TensorFlow job whose task this worker must be.
        shard_steps: int64 `[num_segments, 2]`: the global step of each segment of all ps, and the number of this
            worker's newest gradient there; see `Exchange.shard_steps`.
    """

    def __init__(
        self,
        front_end: StepBuilder,
        job: Job,
        layout: Layout,
        index: int,
        run: str,
        generation: int,
        update: TracedUpdate | None = None,
        connections: Connections | None = None,
    ) -> None:
        # A while loop of control flow v2 is a function call, which cannot be placed on the ps whose queue it waits for.
        v1.disable_control_flow_v2()
        self.worker_job = worker_job(run, job.fleet.colocate)
        own = f"/job:{self.worker_job}/task:{index}"
        container = container_name(run, generation)
        with tf.Graph().as_default() as self.graph:
            slots = exchanged_slots(job, update)
            exchanges = self._exchanges = exchanges_of(job, layout, index, own, container, slots)
            with tf.device(own):
                self._make_inputs(job, layout)
                self.abandonment = self._abandonment(job, index, exchanges)
                self._optimizer = self._local_optimizer(job, layout, update, slots)
                devices = [f"/job:{self.worker_job}/task:{task}" for task in job.fleet.tasks_of(index)]
                with building(job.fleet.parts, devices):
                    training = self._training(front_end, layout, RowsOnPs(layout, container, self.local_step))
                self.feeds, self.summaries = training.feeds, training.summaries
                kept = KeptGradient(job, layout, index)
                self.wants_norm, self.gradients, self.gradient_norm = kept.wants_norm, kept.gradients, kept.norm
                parts = self._parts = [
                    loss_step(each, job, layout, loss, self.state, self.microbatch, kept)
                    for loss, each in enumerate(training.each)
                ]
                self.accumulate = [part.accumulate for part in parts if part.accumulate is not None]
            together = self._together = StepExchanges(job, layout, index, own, exchanges, connections)
            self.connections, self.session_number = connections, together.session_number
            self.order = loss_order(layout.parameters, job.train.alternate)
            self.loss_names = loss_names(layout.parameters)
            self.local_update: tf.Tensor | None = None
            if self._optimizer is None:
                self.steps = [[part.loss, self._push_and_pull(together, part, loss)] for loss, part in enumerate(parts)]
            else:
                self.local_update = self._updated(self._optimizer, parts[0])
                self.steps = [[self._end_of_round(together, self._optimizer)]]
            segments = list(itertools.chain(*exchanges))
            self.pull = self._gather([exchange.pull(self.local_step) for exchange in segments])
            with tf.device(own):
                self.shard_steps = tf.stack([exchange.shard_steps() for exchange in segments])
                remote = [first.variables.frozen.read_value() for first, *_ in exchanges]
                self.load_frozen = self.frozen.assign(tf.concat(remote, 0), read_value=False)
            self.direct = DirectPart(self.graph) if connections is not None and can_be_direct(job) else None
            self.initializer = tf.group(
                *[v.initializer for v in v1.global_variables() + v1.local_variables()], v1.tables_initializer()
            )
            self.graph.finalize()

    def _training(self, front_end: StepBuilder, layout: Layout, rows: RowsOnPs) -> TrainingGraph:
        """The program's part of the step."""
        num_before = len(self.graph.get_operations())
        training = front_end.build(
            layout,
            self._parameters.values,
            byte_vectors.unpack(layout.state, self.state.read_value()),
            byte_vectors.unpack(layout.frozen, self.frozen.read_value()),
            self.microbatch,
            rows=rows,
        )
        if self.abandonment is not None:
            self.abandonment.add_points(self.graph.get_operations()[num_before:], training)
        return training

    def _make_inputs(self, job: Job, layout: Layout) -> None:
        """Placeholders of numbers, and the local copies."""
        self.local_step = v1.placeholder(tf.int64, [], name="local_step")
        self.number = v1.placeholder(tf.int64, [], name="number")
        has_microbatches = job.train.accumulate > 1
        self.microbatch = v1.placeholder(tf.int64, [], name="microbatch") if has_microbatches else self.number
        self._parameters = LocalParameters(layout, job.update.mode == "averaging" or job.train.accumulate > 1)
        self.parameters = self._parameters.pieces
        has_one_step = waits_of(job).has_one_local_step
        self._local_steps = None if has_one_step else local_variable("local_steps", [layout.num_ps], tf.int64)
        self.state = local_variable("state", [layout.state.size], tf.uint8)
        self.frozen = local_variable("frozen", [layout.frozen.size], tf.uint8)

    def _abandonment(self, job: Job, index: int, exchanges: Sequence[Sequence[Exchange]]) -> Abandonment | None:
        if not may_abandon_steps(job):
            return None
        return Abandonment(index, sum(map(len, exchanges)), self.local_step)

    def _local_optimizer(
        self, job: Job, layout: Layout, update: TracedUpdate | None, slots: OptimizerSlots
    ) -> LocalOptimizer | None:
        if job.update.mode != "averaging":
            return None
        average = local_variable("average", [layout.parameters.size], tf.float32)
        return LocalOptimizer(job, layout.parameters, self.parameters[0], average, self.number, update, slots)

    @functools.cached_property
    def await_step(self) -> tf.Tensor:
        """Replaces one of `steps` if this step's gradient is pushed already; returns what they do, without the loss.

        Only a worker that joins again may need it, and in ssp mode each session begins with it. It is added to the
        graph when it is first used, because it is a quarter of the graph; the next call of a session sends it to the
        session's server.
        """
        self.graph._unsafe_unfinalize()
        with self.graph.as_default():
            segments = itertools.chain(*self._exchanges)
            awaited = self._gather([exchange.await_and_pull([], self.local_step) for exchange in segments])
        self.graph.finalize()
        return awaited

    def _push_and_pull(self, exchanges: StepExchanges, part: LossStep, loss: int) -> tf.Tensor:
        """Pushes the gradient of a loss to all ps, and pulls."""
        with tf.device(self.state.device):
            states = tf.split(part.new_state, exchanges.num_ps)
            if self._local_steps is None:
                local_steps = [self.local_step] * exchanges.num_ps
            else:
                local_steps = tf.unstack(self._local_steps.read_value())
            stamps = [tf.stack([local_step, self.number]) for local_step in local_steps]
            # A bucket can arrive before another one has been read. All that follows waits for it, so it is one.
            done = tf.group(*part.updates, *self._parameters.values)
        pulled = exchanges.push_and_pull(part.gradients, stamps, states, loss=loss, tables=part.tables)
        with tf.control_dependencies([done]):
            return self._gather(pulled)

    @functools.cached_property
    def abandonable(self) -> list[tuple[list[tf.Tensor], list[tf.Operation]]]:
        """Replaces `steps` where a step may be abandoned: what each returns, and operations that end with it.

        As `await_step`, it is added to the graph when it is first used.
        """
        assert self.abandonment is not None, "only jobs whose workers may abandon steps need it"
        self.graph._unsafe_unfinalize()
        with self.graph.as_default():
            ours = self._exchanges, self.state, self.number, self._gather
            found = [self.abandonment.step(part, loss, *ours) for loss, part in enumerate(self._parts)]
        self.graph.finalize()
        return found

    def _updated(self, optimizer: LocalOptimizer, part: LossStep) -> tf.Tensor:
        """The loss, after the local update with its gradient."""
        with tf.device(self.state.device):
            kept = [self.state.assign(part.new_state, read_value=False)] if self.state.shape[0] else []
            with tf.control_dependencies([optimizer.apply(part.gradients), *kept, *part.updates]):
                return tf.identity(part.loss)

    def _end_of_round(self, exchanges: StepExchanges, optimizer: LocalOptimizer) -> tf.Tensor:
        """Pushes what the local updates of a round have made, and pulls the averages."""
        with tf.device(self.state.device):
            fall, slots, state = optimizer.fall(), optimizer.slot_vectors(), self.state.read_value()
            stamp = tf.concat([tf.stack([self.local_step, self.local_step]), optimizer.words()], 0)
            states = tf.split(state, exchanges.num_ps)
        return self._gather(exchanges.push_and_pull(fall, [stamp] * len(states), states, slots))

    def _gather(self, pulled: Sequence[Pulled]) -> tf.Tensor:
        """Assigns parameters and state of all segments; returns `Pulled.progress` of each, one row each.

        A model without state has no operation for it.
        """
        with tf.device(self.state.device):
            buckets = [bucket for segment in pulled for bucket in segment.buckets]
            shards = tf.stack([shard.progress for shard in pulled])
            vectors = self._parameters.joined(buckets)
            kept = self._parameters.assign(vectors)
            if self._optimizer is not None:
                slots = [tf.concat(parts, 0) for parts in zip(*[shard.slots for shard in pulled], strict=True)]
                kept += self._optimizer.assigned(vectors[0], slots, pulled[0].words)
            if self.state.shape[0]:
                kept.append(self.state.assign(tf.concat([shard.state for shard in pulled], 0), read_value=False))
            if self._local_steps is not None:
                kept.append(self._local_steps.assign(shards[:, 0], read_value=False))
            with tf.control_dependencies(kept):
                return tf.identity(shards)
