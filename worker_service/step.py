"""One training step as a graph: gradients of the local parameters, push, token and pull in one `Session.run`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf import byte_vectors, container_name, worker_job
from psfleet.tf.optimizer_slots import OptimizerSlots, exchanged_slots
from psfleet.tf.traced_update import TracedUpdate
from worker_service.accumulation import GradientSums
from worker_service.clipping import clipped, norm_if
from worker_service.frontends import finite
from worker_service.frontends.interface import FrontEnd, TrainingGraph
from worker_service.local_optimizer import LocalOptimizer
from worker_service.push_pull import Exchange, Pulled
from worker_service.updates import update_part


class StepGraph:
    """A worker's graph for one generation of a run.

    Attributes:
        graph: The graph; every other attribute is part of it.
        feeds: Placeholders of a batch.
        local_step: int64 scalar placeholder: the lowest global step of the local parameters. In async mode each ps
            gets the global step of its own shard instead, as this worker has pulled it.
        number: int64 scalar placeholder: the number of the batch, and of its gradient.
        microbatch: int64 scalar placeholder: the number of the microbatch, of which each batch has `train.accumulate`;
            without accumulation that is `number`.
        accumulate: float32 scalar: the loss of a microbatch whose gradient is added to a local sum, which begins anew
            with the first of a batch; changes the local state. None without accumulation.
        local_update: float32 scalar, averaging mode: the loss of a batch with which the local parameters, slots and
            state are updated, without the ps. None in the other modes.
        step: Trains: the loss (float32 scalar), and global step and final step of each shard (int64 `[num_ps, 2]`). In
            averaging mode it only ends a round, and has no loss.
        pull: Reads the parameters at `local_step` without waiting: global step, final step and started step of each
            shard (int64 `[num_ps, 3]`). See `Exchange.pull`.
        summaries: `[]` string, the program's own summaries; None if it has none.
        wants_norm: bool scalar placeholder: whether a step computes `gradient_norm`, by default not; None if all or
            none do.
        gradient_norm: float32 variable: the global norm of the newest gradient before it was clipped; if it is not
            clipped, NaN unless `wants_norm` was true, and None in workers other than the chief.
        gradients: float32 variables `[size]` for each of `layout.parameters.specs`: the chief's newest gradient, with
            accumulation the mean over the microbatches, before it was clipped. Empty without
            `summaries.gradient_histograms`, and in other workers.
        load_frozen: Copies the frozen weights from the ps.
        parameters: float32 `[layout.parameters.size]`, the local copy.
        state: uint8 `[layout.state.size]`, the local copy: floating point tensors as of the parameters' step, and all
            others as this worker's own steps have changed them since it read those of the ps.
        frozen: uint8 `[layout.frozen.size]`, the local copy.
        worker_job: The TensorFlow job whose task this worker must be.
        shard_steps: int64 `[num_ps, 2]`: the global step of each shard, and the number of this worker's newest gradient
            there; see `Exchange.shard_steps`.
    """

    def __init__(
        self,
        front_end: FrontEnd,
        job: Job,
        layout: Layout,
        index: int,
        run: str,
        generation: int,
        update: TracedUpdate | None = None,
    ) -> None:
        # A while loop of control flow v2 is a function call, which cannot be placed on the ps whose queue it waits for.
        v1.disable_control_flow_v2()
        self.worker_job = worker_job(run)
        own = f"/job:{self.worker_job}/task:{index}"
        container = container_name(run, generation)
        with tf.Graph().as_default() as self.graph:
            slots = exchanged_slots(job, update)
            exchanges = [Exchange(job, layout, shard, index, own, container, slots) for shard in range(layout.num_ps)]
            self._exchanges = exchanges
            with tf.device(own):
                self._make_inputs(job, layout)
                self._optimizer = self._local_optimizer(job, layout, update, slots)
                training = front_end.build(
                    layout,
                    self.parameters.read_value(),
                    byte_vectors.unpack(layout.state, self.state.read_value()),
                    byte_vectors.unpack(layout.frozen, self.frozen.read_value()),
                    self.microbatch,
                )
                self.feeds, self.summaries = training.feeds, training.summaries
                training = finite.checked(training, layout)
                loss = training.loss
                new_state = byte_vectors.pack(layout.state, training.new_state)
                self.accumulate: tf.Tensor | None = None
                if job.train.accumulate > 1:
                    training = self._accumulated(training, new_state, job.train.accumulate)
                with tf.control_dependencies([loss]):
                    gradients, norm = clipped(training.gradients, job.optimizer.clip_norm)
                self.wants_norm: tf.Tensor | None = None
                if index == 0 and norm is None:
                    self.wants_norm = v1.placeholder_with_default(False, [], name="wants_norm")
                    norm = norm_if(self.wants_norm, training.gradients)
                updates = [*training.updates, *self._kept(job, index, training, norm)]
            self.local_update: tf.Tensor | None = None
            if self._optimizer is None:
                self.step = [loss, self._push_and_pull(exchanges, gradients, new_state, updates)]
            else:
                self.local_update = self._updated(self._optimizer, loss, gradients, new_state, updates)
                self.step = [self._end_of_round(exchanges, self._optimizer)]
            self.pull = self._gather([exchange.pull(self.local_step) for exchange in exchanges])
            with tf.device(own):
                self.shard_steps = tf.stack([exchange.shard_steps() for exchange in exchanges])
                remote = [exchange.variables.frozen.read_value() for exchange in exchanges]
                self.load_frozen = self.frozen.assign(tf.concat(remote, 0), read_value=False)
            self.initializer = tf.group(
                *[v.initializer for v in v1.global_variables() + v1.local_variables()], v1.tables_initializer()
            )
            self.graph.finalize()

    def _make_inputs(self, job: Job, layout: Layout) -> None:
        """Placeholders of numbers, and the local copies."""
        self.local_step = v1.placeholder(tf.int64, [], name="local_step")
        self.number = v1.placeholder(tf.int64, [], name="number")
        has_microbatches = job.train.accumulate > 1
        self.microbatch = v1.placeholder(tf.int64, [], name="microbatch") if has_microbatches else self.number
        self.parameters = _local("parameters", [layout.parameters.size], tf.float32)
        has_one_step = update_part(job).has_one_local_step
        self._local_steps = None if has_one_step else _local("local_steps", [layout.num_ps], tf.int64)
        self.state = _local("state", [layout.state.size], tf.uint8)
        self.frozen = _local("frozen", [layout.frozen.size], tf.uint8)

    def _local_optimizer(
        self, job: Job, layout: Layout, update: TracedUpdate | None, slots: OptimizerSlots
    ) -> LocalOptimizer | None:
        if job.update.mode != "averaging":
            return None
        average = _local("average", [layout.parameters.size], tf.float32)
        return LocalOptimizer(job, layout.parameters, self.parameters, average, self.number, update, slots)

    def _kept(self, job: Job, index: int, training: TrainingGraph, norm: tf.Tensor | None) -> list[tf.Operation]:
        """Stores the gradient and its norm before clipping, as the job asks for it."""
        kept = training.gradients if job.summaries.gradient_histograms and index == 0 else []
        # Assigned, each shares the memory of the gradient.
        self.gradients = [_local(f"gradient_{number}", each.shape, tf.float32) for number, each in enumerate(kept)]
        pairs = list(zip(self.gradients, training.gradients, strict=False))
        self.gradient_norm = None if norm is None else _local("gradient_norm", [], tf.float32)
        if self.gradient_norm is not None:
            pairs.append((self.gradient_norm, norm))
        return [variable.assign(value, read_value=False) for variable, value in pairs]

    @functools.cached_property
    def await_step(self) -> tf.Tensor:
        """Replaces `step` if this step's gradient is pushed already: global step and final step of each shard.

        Only a worker that joins again may need it, and in ssp mode each session begins with it. It is added to the
        graph when it is first used, because it is a quarter of the graph; the next call of a session sends it to the
        session's server.
        """
        self.graph._unsafe_unfinalize()
        with self.graph.as_default():
            awaited = self._gather([exchange.await_and_pull([], self.local_step) for exchange in self._exchanges])
        self.graph.finalize()
        return awaited

    def _push_and_pull(
        self,
        exchanges: Sequence[Exchange],
        gradients: Sequence[tf.Tensor],
        new_state: tf.Tensor,
        updates: Sequence[tf.Operation],
    ) -> tf.Tensor:
        """Pushes to, waits for and pulls from each ps independently."""
        with tf.device(self.parameters.device):
            states = tf.split(new_state, len(exchanges))
            if self._local_steps is None:
                local_steps = [self.local_step] * len(exchanges)
            else:
                local_steps = tf.unstack(self._local_steps.read_value())
            stamps = [tf.stack([local_step, self.number]) for local_step in local_steps]
        pulled = []
        for exchange, state, stamp in zip(exchanges, states, stamps, strict=True):
            pushed, arrived = exchange.push(gradients, stamp, state)
            pulled.append(exchange.await_and_pull(pushed, arrived, state))
        with tf.control_dependencies(updates):
            return self._gather(pulled)

    def _updated(
        self,
        optimizer: LocalOptimizer,
        loss: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        new_state: tf.Tensor,
        updates: Sequence[tf.Operation],
    ) -> tf.Tensor:
        """The loss, after the local update with these gradients."""
        with tf.device(self.parameters.device):
            kept = [self.state.assign(new_state, read_value=False)] if self.state.shape[0] else []
            with tf.control_dependencies([optimizer.apply(gradients), *kept, *updates]):
                return tf.identity(loss)

    def _end_of_round(self, exchanges: Sequence[Exchange], optimizer: LocalOptimizer) -> tf.Tensor:
        """Pushes what the local updates of a round have made, and pulls the averages."""
        with tf.device(self.parameters.device):
            fall, slots, state = optimizer.fall(), optimizer.slot_vectors(), self.state.read_value()
            stamp = tf.concat([tf.stack([self.local_step, self.local_step]), optimizer.words()], 0)
            states = tf.split(state, len(exchanges))
        pulled = []
        for exchange, own_state in zip(exchanges, states, strict=True):
            pushed, arrived = exchange.push(fall, stamp, own_state, slots)
            pulled.append(exchange.await_and_pull(pushed, arrived, own_state))
        return self._gather(pulled)

    def _accumulated(self, training: TrainingGraph, new_state: tf.Tensor, num_microbatches: int) -> TrainingGraph:
        """The step of a batch's last microbatch, with the gradient of the whole batch; makes `accumulate`."""
        gradients = training.gradients
        variables = [_local(f"gradient_sum_{at}", each.shape, tf.float32) for at, each in enumerate(gradients)]
        sums = GradientSums(variables, gradients, self.microbatch, num_microbatches)
        kept = [self.state.assign(new_state, read_value=False)] if self.state.shape[0] else []
        with tf.control_dependencies([*sums.add, *kept, *training.updates]):
            self.accumulate = tf.identity(training.loss)
        return replace(training, gradients=sums.means)

    def _gather(self, pulled: Sequence[Pulled]) -> tf.Tensor:
        """Assigns parameters and state of all shards; returns `Pulled.progress` of each, one row each.

        A model without state has no operation for it.
        """
        with tf.device(self.parameters.device):
            buckets = [bucket for shard in pulled for bucket in shard.buckets]
            vector = tf.concat(buckets, 0) if len(buckets) > 1 else buckets[0]
            shards = tf.stack([shard.progress for shard in pulled])
            kept = [self.parameters.assign(vector, read_value=False)]
            if self._optimizer is not None:
                slots = [tf.concat(parts, 0) for parts in zip(*[shard.slots for shard in pulled], strict=True)]
                kept += self._optimizer.assigned(vector, slots, pulled[0].words)
            if self.state.shape[0]:
                kept.append(self.state.assign(tf.concat([shard.state for shard in pulled], 0), read_value=False))
            if self._local_steps is not None:
                kept.append(self._local_steps.assign(shards[:, 0], read_value=False))
            with tf.control_dependencies(kept):
                return tf.identity(shards)


def _local(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    return v1.get_variable(
        f"worker/{name}", shape, dtype, initializer=v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
