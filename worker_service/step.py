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
from worker_service.accumulation import GradientSums
from worker_service.clipping import clipped
from worker_service.frontends import finite
from worker_service.frontends.interface import FrontEnd, TrainingGraph
from worker_service.push_pull import Exchange, Pulled


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
        step: Trains: the loss (float32 scalar), and global step and final step of each shard (int64 `[num_ps, 2]`).
        pull: Reads the parameters at `local_step` without waiting: global step, final step and started step of each
            shard (int64 `[num_ps, 3]`). See `Exchange.pull`.
        summaries: `[]` string, the program's own summaries; None if it has none.
        gradient_norm: float32 variable: the global norm of the newest gradient before it was clipped; None without
            clipping.
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

    def __init__(self, front_end: FrontEnd, job: Job, layout: Layout, index: int, run: str, generation: int) -> None:
        # A while loop of control flow v2 is a function call, which cannot be placed on the ps whose queue it waits for.
        v1.disable_control_flow_v2()
        self.worker_job = worker_job(run)
        own = f"/job:{self.worker_job}/task:{index}"
        container = container_name(run, generation)
        is_sync = job.update.mode == "sync"
        with tf.Graph().as_default() as self.graph:
            exchanges = [Exchange(job, layout, shard, index, own, container) for shard in range(layout.num_ps)]
            self._exchanges = exchanges
            with tf.device(own):
                self.local_step = v1.placeholder(tf.int64, [], name="local_step")
                self.number = v1.placeholder(tf.int64, [], name="number")
                num_microbatches = job.train.accumulate
                self.microbatch = (
                    v1.placeholder(tf.int64, [], name="microbatch") if num_microbatches > 1 else self.number
                )
                self.parameters = _local("parameters", [layout.parameters.size], tf.float32)
                self._local_steps = None if is_sync else _local("local_steps", [layout.num_ps], tf.int64)
                self.state = _local("state", [layout.state.size], tf.uint8)
                self.frozen = _local("frozen", [layout.frozen.size], tf.uint8)
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
                if num_microbatches > 1:
                    training = self._accumulated(training, new_state, num_microbatches)
                with tf.control_dependencies([loss]):
                    gradients, norm = clipped(training.gradients, job.optimizer.clip_norm)
                updates = list(training.updates)
                is_kept = job.summaries.gradient_histograms and index == 0
                self.gradients = _like(training.gradients) if is_kept else []
                pairs = zip(self.gradients, training.gradients, strict=False)
                updates += [kept.assign(gradient, read_value=False) for kept, gradient in pairs]
                self.gradient_norm = None if norm is None else _local("gradient_norm", [], tf.float32)
                if self.gradient_norm is not None:
                    updates.append(self.gradient_norm.assign(norm, read_value=False))
            self.step = (loss, self._push_and_pull(exchanges, gradients, new_state, updates))
            self.pull = self._gather([exchange.pull(self.local_step) for exchange in exchanges])
            with tf.device(own):
                self.shard_steps = tf.stack([exchange.shard_steps() for exchange in exchanges])
                remote = [exchange.variables.frozen.read_value() for exchange in exchanges]
                self.load_frozen = self.frozen.assign(tf.concat(remote, 0), read_value=False)
            self.initializer = tf.group(
                *[v.initializer for v in v1.global_variables() + v1.local_variables()], v1.tables_initializer()
            )
            self.graph.finalize()

    @functools.cached_property
    def await_step(self) -> tf.Tensor:
        """Replaces `step` if this step's gradient is pushed already: global step and final step of each shard.

        Only a worker that joins again may need it. It is added to the graph when it is first used, because it is a
        quarter of the graph; the next call of a session sends it to the session's server.
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
            pushed, local_step = exchange.push(gradients, stamp, state)
            pulled.append(exchange.await_and_pull(pushed, local_step, state))
        with tf.control_dependencies(updates):
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
            stored = self.parameters.assign(tf.concat(buckets, 0) if len(buckets) > 1 else buckets[0], read_value=False)
            shards = tf.stack([shard.progress for shard in pulled])
            kept = [stored]
            if self.state.shape[0]:
                kept.append(self.state.assign(tf.concat([shard.state for shard in pulled], 0), read_value=False))
            if self._local_steps is not None:
                kept.append(self._local_steps.assign(shards[:, 0], read_value=False))
            with tf.control_dependencies(kept):
                return tf.identity(shards)


def _like(gradients: Sequence[tf.Tensor]) -> list[tf.Variable]:
    """A variable for each gradient; assigned, it shares the memory of the gradient."""
    return [_local(f"gradient_{number}", gradient.shape, tf.float32) for number, gradient in enumerate(gradients)]


def _local(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    return v1.get_variable(
        f"worker/{name}", shape, dtype, initializer=v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
