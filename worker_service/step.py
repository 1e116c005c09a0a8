"""One training step as a graph: gradients of the local parameters, push, token and pull in one `Session.run`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import FlatLayout, Layout
from psfleet.tf import container_name, worker_job
from worker_service.clipping import clipped
from worker_service.frontends import finite
from worker_service.frontends.interface import FrontEnd
from worker_service.push_pull import Exchange


class StepGraph:
    """A worker's graph for one generation of a run.

    Attributes:
        graph: The graph; every other attribute is part of it.
        feeds: Placeholders of a batch.
        local_step: int64 scalar placeholder: the lowest global step of the local parameters. In async mode each ps
            gets the global step of its own shard instead, as this worker has pulled it.
        number: int64 scalar placeholder: the number of the batch, and of its gradient.
        step: Trains: the loss (float32 scalar), and global step and final step of each shard (int64 `[num_ps, 2]`).
        await_step: Replaces `step` if this step's gradient is pushed already: global step and final step.
        pull: Reads the parameters at `local_step` without waiting: global step, final step and started step of each
            shard (int64 `[num_ps, 3]`). See `Exchange.pull`.
        summaries: `[]` string, the program's own summaries; None if it has none.
        parameters: float32 `[layout.parameters.size]`, the local copy.
        remote_state: State and frozen weights on the ps, uint8 `[state size]` and uint8 `[frozen size]`.
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
            with tf.device(own):
                self.local_step = v1.placeholder(tf.int64, [], name="local_step")
                self.number = v1.placeholder(tf.int64, [], name="number")
                self.parameters = _local("parameters", [layout.parameters.size], tf.float32)
                self._local_steps = None if is_sync else _local("local_steps", [layout.num_ps], tf.int64)
                state = _local_tensors("state", layout.state)
                frozen = _local_tensors("frozen", layout.frozen)
                training = front_end.build(
                    layout,
                    self.parameters.read_value(),
                    [s.read_value() for s in state],
                    [f.read_value() for f in frozen],
                    self.number,
                )
                self.feeds, self.summaries = training.feeds, training.summaries
                training = finite.checked(training, layout)
                loss = training.loss
                with tf.control_dependencies([loss]):
                    gradients = clipped(training.gradients, job.optimizer.clip_norm)
                pushed_state = _as_bytes(layout.state, training.new_state) if index == 0 and state else None
                with tf.control_dependencies([loss]):
                    kept = [s.assign(new, read_value=False) for s, new in zip(state, training.new_state, strict=True)]
            updates = [*training.updates, *kept]
            self.step = (loss, self._push_and_pull(exchanges, gradients, pushed_state, updates))
            self.await_step = self._gather([exchange.await_and_pull([], self.local_step) for exchange in exchanges])
            self.pull = self._gather([exchange.pull(self.local_step) for exchange in exchanges])
            with tf.device(own):
                self.shard_steps = tf.stack([exchange.shard_steps() for exchange in exchanges])
                self.remote_state = (
                    tf.concat([exchange.variables.state.read_value() for exchange in exchanges], 0),
                    tf.concat([exchange.variables.frozen.read_value() for exchange in exchanges], 0),
                )
            self._loads = [(v, v1.placeholder(v.dtype, v.shape)) for v in (*state, *frozen)]
            self._load = [variable.assign(feed, read_value=False) for variable, feed in self._loads]
            self.initializer = tf.group(
                *[v.initializer for v in v1.global_variables() + v1.local_variables()], v1.tables_initializer()
            )
            self.graph.finalize()

    def load_state(self, session: v1.Session, layout: Layout, options: v1.RunOptions) -> None:
        """Copies state and frozen weights from the ps to this worker's variables."""
        vectors = session.run(self.remote_state, options=options)
        values: list[np.ndarray] = []
        for flat, vector in zip((layout.state, layout.frozen), vectors, strict=True):
            named = flat.unpack(vector)
            values += [named[spec.name] for spec in flat.specs]
        feeds = {feed: value for (_, feed), value in zip(self._loads, values, strict=True)}
        session.run(self._load, feeds)

    def _push_and_pull(
        self,
        exchanges: Sequence[Exchange],
        gradients: Sequence[tf.Tensor],
        state: tf.Tensor | None,
        updates: Sequence[tf.Operation],
    ) -> tf.Tensor:
        """Pushes to, waits for and pulls from each ps independently."""
        with tf.device(self.parameters.device):
            states = [None] * len(exchanges) if state is None else tf.split(state, len(exchanges))
            if self._local_steps is None:
                local_steps = [self.local_step] * len(exchanges)
            else:
                local_steps = tf.unstack(self._local_steps.read_value())
            stamps = [tf.stack([local_step, self.number]) for local_step in local_steps]
        pulled = []
        for exchange, piece, stamp in zip(exchanges, states, stamps, strict=True):
            pushed, local_step = exchange.push(gradients, stamp, piece)
            pulled.append(exchange.await_and_pull(pushed, local_step))
        with tf.control_dependencies(updates):
            return self._gather(pulled)

    def _gather(self, pulled: Sequence[tuple[tf.Tensor, list[tf.Tensor]]]) -> tf.Tensor:
        """Assigns the parameters of all shards; returns global step, final step and so on of each, one row each."""
        with tf.device(self.parameters.device):
            buckets = [bucket for _, shard in pulled for bucket in shard]
            stored = self.parameters.assign(tf.concat(buckets, 0) if len(buckets) > 1 else buckets[0], read_value=False)
            shards = tf.stack([progress for progress, _ in pulled])
            kept = [stored]
            if self._local_steps is not None:
                kept.append(self._local_steps.assign(shards[:, 0], read_value=False))
            with tf.control_dependencies(kept):
                return tf.identity(shards)


def _local(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    return v1.get_variable(
        f"worker/{name}", shape, dtype, initializer=v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip


def _local_tensors(kind: str, flat: FlatLayout) -> list[tf.Variable]:
    return [
        _local(f"{kind}_{index}", spec.shape, tf.dtypes.as_dtype(spec.dtype)) for index, spec in enumerate(flat.specs)
    ]


def _as_bytes(flat: FlatLayout, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Packs tensors, in the order of the layout, into its vector, uint8 `[size]`."""
    parts: list[tf.Tensor] = []
    at = 0
    for spec, offset, tensor in zip(flat.specs, flat.offsets, tensors, strict=True):
        if offset > at:
            parts.append(tf.zeros([offset - at], tf.uint8))
        raw = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tf.bitcast(tensor, tf.uint8)
        parts.append(tf.reshape(raw, [-1]))
        at = offset + spec.num_bytes
    if flat.size > at:
        parts.append(tf.zeros([flat.size - at], tf.uint8))
    return tf.concat(parts, 0)
