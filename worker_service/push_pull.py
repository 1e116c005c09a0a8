"""The exchange of a worker with one ps in a step: pushes a gradient, waits for the token, pulls the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import FlatLayout, Layout
from psfleet.tf import STALENESS_BUCKETS, ShardVariables, keeps_previous, secs_since
from worker_service.state_wire import StateWire

SMALL_BYTES = 1 << 20
"""A bucket of at most this size carries the global step: the copy costs less than a second tensor on the network."""


@dataclass(frozen=True)
class Pulled:
    """What a worker has read from one shard; the tensors are on the worker.

    Attributes:
        progress: int64 `[2]`, the shard's global step and final step; `Exchange.pull` adds the started step.
        buckets: `[bucket_size]` float32 each.
        state: uint8 `[state shard size]`.
    """

    progress: tf.Tensor
    buckets: list[tf.Tensor]
    state: tf.Tensor


class Exchange:
    """A worker's end of one shard.

    Args of the constructor:
        shard: Index of the shard; its ps is task `shard` of job `ps` in the session's ClusterSpec.
        index: Of this worker.
        own_device: This worker's device.
        container: The resource container of the generation.
    """

    def __init__(self, job: Job, layout: Layout, shard: int, index: int, own_device: str, container: str) -> None:
        self.variables = ShardVariables(
            layout, shard, job.fleet.worker_limit, container, f"/job:ps/task:{shard}", keeps_previous(job)
        )
        self._is_sync = job.update.mode == "sync"
        self._wire = tf.dtypes.as_dtype(job.update.wire)
        self._shard = shard
        self._index = index
        self._own_device = own_device
        self._layout = layout.parameters
        self._state_wire = StateWire(self.variables.state_ranges, index == 0, self._wire)
        self._is_small = self._layout.bucket_size * 4 <= SMALL_BYTES

    def push(
        self, gradients: Sequence[tf.Tensor], stamp: tf.Tensor, state: tf.Tensor
    ) -> tuple[list[tf.Operation], tf.Tensor]:
        """Sends a gradient to the ps; its first bucket is followed by the state and its stamp.

        Args:
            gradients: `[size]` float32 for each parameter of the layout; those of this shard are sent.
            stamp: int64 `[2]`: the local step, which is the global step of the parameters that they were computed on;
                and the gradient's number, which is that of its batch.
            state: uint8 `[state shard size]` after the forward pass.

        Returns:
            Operations that end once the ps has the gradient, and the local step on the ps, int64 scalar.
        """
        with tf.device(self._own_device):
            sent = self._buckets(gradients, stamp, state)
        variables = self.variables
        with tf.device(variables.device):
            arrived_state, rest = self._state_wire.pushed(sent[0][self._layout.bucket_size :])
            stamp = _numbers(rest)
            local_step = tf.unstack(stamp)[0]
            # Copies on the ps of what arrives there: waiting for `sent` itself would take a message of its own.
            arrived = [tf.cast(tf.identity(bucket), tf.float32) for bucket in sent]
            arrived[0] = arrived[0][: self._layout.bucket_size]
            arrived += arrived_state
            # Once all buckets are there: a worker that is killed before has pushed nothing.
            with tf.control_dependencies([*arrived, stamp]):
                before = [variables.pushed.add_at([self._index], tf.constant(1, tf.int64))]
            if self._is_sync:
                before.append(self._count_staleness(local_step))
            with tf.control_dependencies(before):
                return [variables.gradients.enqueue([*arrived, stamp, tf.constant(self._index)])], local_step

    def await_and_pull(
        self, after: Sequence[tf.Operation], local_step: tf.Tensor, own_state: tf.Tensor | None = None
    ) -> Pulled:
        """Waits for the ps, then reads global step and final step, its parameters and its state.

        Sync: until the shard's global step is above `local_step`. Async: until the ps has applied or dropped this
        worker's gradient. The wait is added to `waited_secs` by the ps's clock.

        The global step is read before the parameters and so never newer than they are: a gradient computed on
        parameters that were read during an update counts as stale.

        Args:
            own_state: uint8 `[state shard size]`, this worker's state, which it keeps but for the averages; None: it
                takes the whole state of the shard.
        """
        variables = self.variables
        with tf.device(variables.device):
            with tf.control_dependencies(after):
                arrived = tf.timestamp()
            with tf.control_dependencies([arrived]):
                passed = self._pass_barrier(local_step) if self._is_sync else variables.tokens[self._index].dequeue()
            with tf.control_dependencies([passed]):
                waited = secs_since(arrived)
            with tf.control_dependencies([variables.waited_secs.add_at([self._index], waited)]):
                progress = tf.stack(variables.progress())
            with tf.control_dependencies([progress]):
                buckets = [tf.cast(bucket.read_value(), self._wire) for bucket in variables.buckets]
                state = variables.state.read_value()
        # Outside of the control dependencies: waiting for the barrier on the worker too would cost one more message.
        return self._receive(progress, buckets, state, own_state)

    def pull(self, at_step: tf.Tensor) -> Pulled:
        """Reads the shard's parameters and state at a step, without waiting.

        If the shard is ahead of that step and keeps what it had before its last update, it returns that. The started
        step (see `ShardVariables`) is that after the read.

        Args:
            at_step: int64 scalar, the lowest global step among the shards.
        """
        variables = self.variables
        with tf.device(variables.device):
            global_step, final_step = variables.progress()
            with tf.control_dependencies([global_step, final_step]):
                *buckets, state = [variable.read_value() for variable in (*variables.buckets, variables.state)]
                is_ahead = global_step > at_step
                if variables.previous:
                    pairs = zip(variables.previous, buckets, strict=True)
                    buckets = [tf.where(is_ahead, previous.read_value(), bucket) for previous, bucket in pairs]
                for previous in variables.previous_state:
                    state = tf.where(is_ahead, previous.read_value(), state)
            sent = [tf.cast(bucket, self._wire) for bucket in buckets]
            with tf.control_dependencies([*buckets, state]):
                started_step = variables.started_step.read_value()
            progress = tf.stack([global_step, final_step, started_step])
        with tf.device(self._own_device):
            return Pulled(tf.identity(progress), [tf.cast(bucket, tf.float32) for bucket in sent], tf.identity(state))

    def shard_steps(self) -> tf.Tensor:
        """int64 `[2]`, without waiting: the shard's global step, and the number of this worker's newest gradient.

        In sync mode a gradient's number is its local step.
        """
        variables = self.variables
        newest = variables.last_local_step if self._is_sync else variables.last_number
        with tf.device(variables.device):
            return tf.stack([variables.global_step.read_value(), newest.read_element(self._index)])

    def _receive(
        self, progress: tf.Tensor, buckets: Sequence[tf.Tensor], state: tf.Tensor, own_state: tf.Tensor | None
    ) -> Pulled:
        """Sends what was read on the ps to the worker; a small first bucket is followed by state and progress."""
        with tf.device(self.variables.device):
            averages = [] if own_state is None else self._state_wire.pull(state)
            sent = list(buckets)
            if self._is_small:
                sent[0] = tf.concat([sent[0], *averages, _bits(progress, self._wire)], 0)
        with tf.device(self._own_device):
            received = [tf.cast(bucket, tf.float32)[: self._layout.bucket_size] for bucket in sent]
            if self._is_small:
                rest = sent[0][self._layout.bucket_size :]
            else:
                rest = averages[0] if averages else tf.zeros([0], self._wire)
            if own_state is not None:
                states, rest = self._state_wire.pulled(rest, own_state)
                state = states[0] if states else own_state
            if self._is_small:
                progress = _numbers(rest)
            return Pulled(tf.identity(progress), received, tf.identity(state))

    def _buckets(self, gradients: Sequence[tf.Tensor], stamp: tf.Tensor, state: tf.Tensor) -> list[tf.Tensor]:
        """This shard's buckets of the gradients of all tensors, in the wire type.

        Gaps are zeros. The first bucket is followed by the bits of the state and the stamp.
        """
        size = self._layout.bucket_size
        shard_size = self._layout.shard_size
        start = self._shard * shard_size
        parts = [_range(self._layout, gradients, low, low + size) for low in range(start, start + shard_size, size)]
        sent = [[tf.cast(part, self._wire) for part in bucket] for bucket in parts]
        sent[0] += [*self._state_wire.push(state), _bits(stamp, self._wire)]
        return [tf.concat(bucket, 0) for bucket in sent]

    def _count_staleness(self, local_step: tf.Tensor) -> tf.Operation:
        """Sync: counts by how many updates a gradient is late when it arrives."""
        variables = self.variables
        late = tf.clip_by_value(variables.global_step.read_value() - local_step, 0, STALENESS_BUCKETS - 1)
        return variables.staleness.add_at([tf.constant(self._index, tf.int64), late], tf.constant(1, tf.int64))

    def _pass_barrier(self, local_step: tf.Tensor) -> tf.Tensor:
        """The global step, once it is above `local_step`: a loop on the ps that waits for this worker's tokens.

        Before each wait it registers for a token and then reads the global step again, so that it cannot miss an
        update; see `ps_service.updates.tokens`.
        """
        variables = self.variables

        def register() -> tf.Tensor:
            must_wait = tf.cast(variables.global_step.read_value() <= local_step, tf.int32)
            with tf.control_dependencies([variables.waiting.enqueue_many(tf.fill([must_wait], self._index))]):
                return variables.global_step.read_value()

        def wait(global_step: tf.Tensor) -> tf.Tensor:
            del global_step
            with tf.control_dependencies([variables.tokens[self._index].dequeue()]):
                return register()

        return v1.while_loop(lambda step: step <= local_step, wait, [register()], parallel_iterations=1)


def _range(layout: FlatLayout, tensors: Sequence[tf.Tensor], low: int, high: int) -> list[tf.Tensor]:
    """The elements from `low` to `high` of the vector in which `tensors`, each `[size]` float32, are laid out."""
    parts: list[tf.Tensor] = []
    at = low
    for spec, offset, tensor in zip(layout.specs, layout.offsets, tensors, strict=True):
        start, stop = max(low, offset), min(high, offset + spec.size)
        if start >= stop:
            continue
        if start > at:
            parts.append(tf.zeros([start - at]))
        parts.append(tensor[start - offset : stop - offset] if stop - start < spec.size else tensor)
        at = stop
    if high > at:
        parts.append(tf.zeros([high - at]))
    return parts


def _bits(numbers: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Bitcasts int64 numbers to a vector of another type; only the bits have a meaning."""
    return tf.reshape(tf.bitcast(numbers, dtype), [-1])


def _numbers(bits: tf.Tensor) -> tf.Tensor:
    """The inverse of `_bits` of two numbers: int64 `[2]`."""
    return tf.bitcast(tf.reshape(bits, [2, -1]), tf.int64)
