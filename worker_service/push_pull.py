"""The exchange of a worker with one ps in a step: pushes a gradient, waits for the token, pulls the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.layout.segments import Segment
from psfleet.tf import ShardVariables, ps_device
from psfleet.tf.optimizer_slots import OptimizerSlots
from psfleet.tf.ps_half import PsHalf, rounded, with_zeros
from psfleet.tf.state_wire import StateWire
from psfleet.tf.table_calls import shard_name
from psfleet.tf.waits import waits_of
from worker_service.bucket_wire import numbers, sent_buckets
from worker_service.frontends.table_rows import TableGradient
from worker_service.pull_wire import PullWire, Sent
from worker_service.pulled import Pulled
from worker_service.table_exchange import staged

SMALL_BYTES = 1 << 20
"""A bucket of at most this size carries the global step: the copy costs less than a second tensor on the network."""


class Exchange:
    """A worker's end of one segment of a shard.

    Args of the constructor:
        shard: Index of the shard, and of its ps.
        segment: Of the shard.
        index: Of this worker.
        own_device: This worker's device.
        container: The resource container of the generation.
        keeps_previous: Whether the ps has the parameters before its last update.
        slots: That are pushed and pulled with the parameters, in averaging mode; None: none.

    Attributes:
        segment: Of the constructor.
        variables: Those of the segment.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        shard: int,
        segment: Segment,
        index: int,
        own_device: str,
        container: str,
        keeps_previous: bool,
        slots: OptimizerSlots | None = None,
    ) -> None:
        self.segment = segment
        self.variables = ShardVariables(
            layout, shard, job.fleet.worker_limit, container, ps_device(shard), keeps_previous, slots, segment
        )
        self._waits = waits_of(job)
        self._ps = PsHalf(self.variables, self._waits, index)
        self._wire = tf.dtypes.as_dtype(job.update.wire)
        self._shard = shard
        self._index = index
        self._own_device = own_device
        self._layout = layout.parameters
        self._buckets = segment.buckets
        self._state_wire = StateWire(self.variables.state_ranges, index == 0, self._wire)
        is_small = self._layout.bucket_size * 4 <= SMALL_BYTES
        self._pulls = PullWire(self.variables, segment, self._state_wire, own_device, self._wire, is_small)

    def push(
        self,
        gradients: Sequence[tf.Tensor],
        stamp: tf.Tensor,
        state: tf.Tensor,
        slots: Sequence[tf.Tensor] = (),
        loss: int = 0,
        tables: Sequence[TableGradient] = (),
        after: Sequence[tf.Tensor | tf.Operation] = (),
    ) -> tuple[list[tf.Operation], tf.Tensor]:
        """Sends a gradient to the ps; its first bucket is followed by the state and its stamp.

        Only the buckets of the loss are sent: the ps enqueues zeros for all others.

        Args:
            gradients: `[size]` float32 for each tensor of the loss; those of this shard are sent.
            stamp: int64 `[2]`: the local step, which is the global step of the parameters that they were computed on;
                and the gradient's number, which is that of its batch. In averaging mode the optimizer's scalars follow.
            state: uint8 `[state shard size]` after the forward pass.
            slots: Averaging mode: float32 `[layout.parameters.size]` for each slot; the part of this shard is sent.
            loss: Its index.
            tables: Gradients of rows of tables, which the ps has before it has those of the buckets.
            after: It is sent once these are known: stamps of other pushes, on the ps, or operations on the worker.

        Returns:
            Operations that end once the ps has the gradient in its queue, and the stamp on the ps, which is known once
            it has received all of it.
        """
        # Not before: copies of all gradients at once would delay the first push.
        with tf.device(self._own_device), tf.control_dependencies(after):
            own = [bucket for bucket in self._buckets if bucket.loss == loss]
            sent = sent_buckets(self._layout, own, gradients, self._wire, self._state_wire.push(state), stamp)
            sent += [slot[bucket.start : bucket.stop] for slot in slots for bucket in own]
            first = own[0].size if own else 0
        variables = self.variables
        with tf.device(variables.device):
            arrived_state, rest = self._state_wire.pushed(sent[0][first:])
            stamp = numbers(rest, 2 + len(variables.scalars))
            # Copies on the ps of what arrives there: waiting for `sent` itself would take a message of its own.
            arrived = [tf.cast(tf.identity(bucket), tf.float32) for bucket in sent]
            arrived[0] = arrived[0][:first]
            arrived = [*with_zeros(self._buckets, own, arrived), *arrived_state]
            stamp, before = self._ps.count(arrived, stamp)
            name, num_ps = shard_name(variables.container, self._shard), self._layout.num_shards
            number = stamp[0] if self._waits.has_one_local_step else stamp[1]
            ticket = staged(name, self._shard, num_ps, self._index, number, tables, self._own_device)
            ticketed = tf.concat([stamp, *ticket], 0) if ticket else stamp
        return self._ps.enqueue(arrived, ticketed, before), stamp

    def await_and_pull(
        self, after: Sequence[tf.Operation], stamp: tf.Tensor, own_state: tf.Tensor | None = None
    ) -> Pulled:
        """Waits for the ps as the mode demands, then reads global step and final step, its parameters and its state.

        The wait is added to `waited_secs` by the ps's clock.

        Args:
            after: Of the push that it waits for, see `push`; empty: it waits as at the beginning of a session.
            stamp: Of that push; without one only the local step, int64 scalar.
            own_state: uint8 `[state shard size]`, this worker's state, which it keeps but for the averages; None: it
                takes the whole state of the shard.
        """
        counted = self._ps.await_pull(after, stamp)
        return self._pulls.received(self._sent([counted], own_state is not None), own_state)

    def await_beside_push(
        self, pushed: Sequence[tf.Operation], local_step: tf.Tensor, own_states: Sequence[tf.Tensor]
    ) -> tuple[list[Pulled], tf.Operation]:
        """As `await_and_pull`, but waits and reads from the beginning of the call, and not after the push.

        Args:
            pushed: Of the push, see `push`.
            local_step: int64 scalar on the worker.
            own_states: As `own_state` of `await_and_pull`.

        Returns:
            What is pulled, with each of `own_states`; and an operation that ends once the push and the wait have ended,
            and adds the time from the one to the other to `waited_secs`.
        """
        variables = self.variables
        with tf.device(variables.device):
            passed = self._waits.wait(variables, self._index, local_step, local_step)
            with tf.control_dependencies(pushed):
                arrived = tf.timestamp()
            counted = self._ps.count_wait(arrived, passed)
        sent = self._sent([passed], has_own_state=True)
        return [self._pulls.received(sent, own_state) for own_state in own_states], counted

    def _sent(self, after: Sequence[tf.Operation | tf.Tensor], has_own_state: bool) -> Sent:
        """Reads what a worker pulls, see `PsHalf.read`, as it is sent."""
        progress, values, state, words = self._ps.read(after)
        # Outside of the control dependencies: waiting for the barrier on the worker too would cost one more message.
        return self._pulls.sent(progress, values, state, words, has_own_state)

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
                *values, state = [variable.read_value() for variable in (*variables.exchanged, variables.state)]
                words = self._ps.words()
                is_ahead = global_step > at_step
                if variables.previous:
                    pairs = zip(variables.previous, values, strict=True)
                    values = [tf.where(is_ahead, previous.read_value(), value) for previous, value in pairs]
                for previous in variables.previous_state:
                    state = tf.where(is_ahead, previous.read_value(), state)
                for previous in variables.previous_words:
                    words = tf.where(is_ahead, previous.read_value(), words)
            sent = rounded(variables, values, self._wire)
            with tf.control_dependencies([*values, state, words]):
                started_step = variables.started_step.read_value()
            progress = tf.concat([tf.stack([global_step, final_step, started_step]), words], 0)
        with tf.device(self._own_device):
            received, slots = self._pulls.split([tf.cast(value, tf.float32) for value in sent])
            return Pulled(progress[:3], received, self._pulls.own_state(state), slots, progress[3:])

    def shard_steps(self) -> tf.Tensor:
        """int64 `[2]`, without waiting: the shard's global step, and the number of this worker's newest gradient."""
        variables = self.variables
        newest = self._waits.newest_number(variables)
        with tf.device(variables.device):
            return tf.stack([variables.global_step.read_value(), newest.read_element(self._index)])
