"""The half of an exchange that is on the ps, in the graph of a worker or of the ps: a push, a wait, and a pull."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from psfleet.exchange.message_layout import TensorKind
from psfleet.layout.buckets import Bucket
from psfleet.layout.segments import Segment
from psfleet.tf.optimizer_slots import to_words
from psfleet.tf.shard_variables import ShardVariables, secs_since
from psfleet.tf.state_wire import StateWire
from psfleet.tf.waits import Index, Waits


class PsHalf:
    """The operations on one segment of a shard, on the device of its ps.

    Args of the constructor:
        variables: Of the segment.
        waits: Of the job's mode.
        index: Of the worker.
    """

    def __init__(self, variables: ShardVariables, waits: Waits, index: Index) -> None:
        self._variables = variables
        self._waits = waits
        self._index = index

    def count(self, arrived: Sequence[tf.Tensor], stamp: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
        """Counts a push once all of it is there: a worker that is killed before has pushed nothing.

        Args:
            arrived: On the ps, in the order of `ShardVariables.gradients`.
            stamp: int64 vector: local step, number, and scalars of the optimizer.

        Returns:
            The stamp, which is known once all is there, and operations that come before `enqueue`.
        """
        with tf.device(self._variables.device), tf.control_dependencies([*arrived, stamp]):
            stamp = tf.identity(stamp)
            before = [self._variables.pushed.add_at([self._index], tf.constant(1, tf.int64))]
            return stamp, before + self._waits.on_arrival(self._variables, self._index, stamp[0])

    def enqueue(
        self, arrived: Sequence[tf.Tensor], stamp: tf.Tensor, before: Sequence[tf.Operation]
    ) -> list[tf.Operation]:
        """Operations that end once the push is in the queue of the ps.

        Args:
            stamp: As `count` returns it, with tables followed by the ticket.
            before: As `count` returns it.
        """
        with tf.device(self._variables.device), tf.control_dependencies(before):
            index = tf.convert_to_tensor(self._index, tf.int32)
            return [self._variables.gradients.enqueue([*arrived, stamp, index])]

    def await_pull(self, after: Sequence[tf.Operation], stamp: tf.Tensor) -> tf.Operation:
        """Waits as the mode demands; the time is added to `waited_secs` by the clock of the ps.

        Args:
            after: Of the push that it waits for; empty: it waits as at the beginning of a session.
            stamp: Of that push; without one only the local step, int64 scalar.
        """
        variables, index = self._variables, self._index
        with tf.device(variables.device):
            with tf.control_dependencies(after):
                arrived = tf.timestamp()
            with tf.control_dependencies([arrived]):
                if after:
                    passed = self._waits.wait(variables, index, stamp[0], stamp[1])
                else:
                    passed = self._waits.wait_to_begin(variables, index, stamp)
            return self.count_wait(arrived, passed)

    def count_wait(self, arrived: tf.Tensor, passed: tf.Tensor) -> tf.Operation:
        """Adds the time from one to the other to `waited_secs`."""
        with tf.control_dependencies([arrived, passed]):
            waited = secs_since(arrived)
        return self._variables.waited_secs.add_at([self._index], waited)

    def read(
        self, after: Sequence[tf.Operation | tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Reads what a worker pulls.

        The global step is read before the parameters and so never newer than they are: a gradient computed on
        parameters that were read during an update counts as stale.

        Returns:
            int64 `[2]`, global step and final step; `ShardVariables.exchanged`; the state; and the optimizer's scalars
            as words.
        """
        variables = self._variables
        with tf.device(variables.device):
            with tf.control_dependencies(after):
                progress = tf.stack(variables.progress())
            with tf.control_dependencies([progress]):
                values = [variable.read_value() for variable in variables.exchanged]
                return progress, values, variables.state.read_value(), self.words()

    def words(self) -> tf.Tensor:
        """The optimizer's scalars, see `to_words`."""
        return to_words([scalar.read_value() for scalar in self._variables.scalars.values()])


def buckets_of(segment: Segment, loss: int) -> list[Bucket]:
    """The buckets of a segment that the steps of a loss move."""
    return [bucket for bucket in segment.buckets if bucket.loss == loss]


def pushed_kinds(
    variables: ShardVariables, own: Sequence[Bucket], state_wire: StateWire, wire: tf.DType
) -> list[TensorKind]:
    """The tensors of a push on a connection: stamp, state, buckets, and slots.

    Args:
        variables: Of the segment.
        own: The buckets that travel.
        state_wire: Of the worker, in bytes.
        wire: Type of the buckets.
    """
    sizes = [bucket.size for bucket in own]
    return [
        TensorKind(np.dtype(np.int64), 2 + len(variables.scalars)),
        *[TensorKind(np.dtype(np.uint8), size) for size in state_wire.push_sizes],
        *[TensorKind(np.dtype(wire.as_numpy_dtype), size) for size in sizes],
        *[TensorKind(np.dtype(np.float32), size) for size in sizes * len(variables.slots)],
    ]


def with_zeros(every: Sequence[Bucket], own: Sequence[Bucket], arrived: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """On the ps: what has arrived of `own`, and zeros for the buckets of other losses.

    Args:
        every: All buckets of the shard.
        arrived: Begins with `own`; what follows is kept if these are all.
    """
    if len(own) == len(every):
        return list(arrived)
    found = dict(zip(own, arrived, strict=False))
    return [found[each] if each in found else tf.zeros([each.size]) for each in every]


def rounded(variables: ShardVariables, values: Sequence[tf.Tensor], wire: tf.DType) -> list[tf.Tensor]:
    """What is sent of `ShardVariables.exchanged`: the buckets in the wire type, and slots as they are."""
    number = len(variables.buckets)
    return [*[tf.cast(bucket, wire) for bucket in values[:number]], *values[number:]]
