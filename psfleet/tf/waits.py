"""What a push does when it arrives at a ps, and what it waits for there before the worker pulls: one class per mode.

The operations are on the device of the ps, in the graph of a worker or of the ps itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.tf.clocks import counted_clock, lowest_clock
from psfleet.tf.shard_variables import STALENESS_BUCKETS, ShardVariables

Index: TypeAlias = tf.Tensor | int
"""Of a worker; a tensor is an int32 scalar."""
CLOCK_SHARD = 0
"""The shard whose ps keeps the clocks."""


class Waits(Protocol):
    """The waits of a mode. `local_step` and `number`, int64 scalars, are those of the gradient.

    Attributes:
        has_one_local_step: Whether every ps gets one local step, the lowest; else each gets that of its own shard.
    """

    has_one_local_step: bool

    def on_arrival(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> list[tf.Operation]:
        """Operations between the arrival of a push and its way into the queue."""

    def wait(self, variables: ShardVariables, index: Index, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Ends when the worker may pull, after its push."""

    def wait_to_begin(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> tf.Tensor:
        """Ends when the worker may pull, at the beginning of a session."""

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """By worker, the number of its newest gradient: int64 `[worker_limit]`."""


class SyncWaits:
    """Sync and averaging mode: until the global step is above that of the gradient; see `Waits`."""

    has_one_local_step = True

    def on_arrival(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> list[tf.Operation]:
        """Counts by how many updates a gradient is late when it arrives."""
        late = tf.clip_by_value(variables.global_step.read_value() - local_step, 0, STALENESS_BUCKETS - 1)
        return [variables.staleness.add_at([tf.cast(index, tf.int64), late], tf.constant(1, tf.int64))]

    def wait(self, variables: ShardVariables, index: Index, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Until the shard's global step is above `local_step`."""
        del number
        return pass_barrier(
            variables,
            index,
            variables.global_step.read_value,
            lambda step: step > local_step,
            among_all(variables, index),
        )

    def wait_to_begin(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> tf.Tensor:
        """As after a push, which an earlier session has made."""
        return self.wait(variables, index, local_step, local_step)

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """A gradient's number is its local step."""
        return variables.last_local_step


class AsyncWaits:
    """Async mode: until the ps has applied or dropped the gradient; see `Waits`."""

    has_one_local_step = False

    def on_arrival(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> list[tf.Operation]:
        """Nothing: the ps counts the staleness when it takes the gradient."""
        del variables, index, local_step
        return []

    def wait(self, variables: ShardVariables, index: Index, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Until the newest of this worker's numbers that the ps has set is `number`, or a higher one."""
        del local_step

        def register() -> tf.Operation:
            return variables.registered.add_at([index], tf.constant(1, tf.int64))

        newest = partial(variables.last_number.read_element, index)
        return pass_barrier(variables, index, newest, lambda value: value >= number, register)

    def wait_to_begin(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> tf.Tensor:
        """Not at all."""
        del index, local_step
        return variables.global_step.read_value()

    def newest_number(self, variables: ShardVariables) -> tf.Variable:
        """A worker numbers its gradients."""
        return variables.last_number


class SspWaits(AsyncWaits):
    """Ssp mode: as async, and on ps 0 while the worker is too many steps ahead of the slowest one; see `Waits`.

    Args of the constructor:
        bound: Steps that a worker may be ahead when it begins a step.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def wait(self, variables: ShardVariables, index: Index, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Until the gradient is applied or dropped, and on ps 0 until this worker may begin another step."""
        if variables.shard != CLOCK_SHARD:
            return super().wait(variables, index, local_step, number)

        def may_begin() -> tf.Tensor:
            newest = variables.last_number.read_element(index)
            is_processed = newest >= number
            # Afterwards: the ps sets the clock, and then the number.
            with tf.control_dependencies([newest]):
                clocks = variables.clocks.read_value()
            lead = clocks[index] - lowest_clock(clocks)
            is_over = variables.global_step.read_value() >= variables.final_step.read_value()
            return is_processed & ((lead <= self._bound) | is_over)

        return pass_barrier(variables, index, may_begin, lambda is_open: is_open, among_all(variables, index))

    def wait_to_begin(self, variables: ShardVariables, index: Index, local_step: tf.Tensor) -> tf.Tensor:
        """Counts this worker from now on, and waits as after a gradient."""
        if variables.shard != CLOCK_SHARD:
            return super().wait_to_begin(variables, index, local_step)
        clocks = variables.clocks.read_value()
        counted = variables.clocks.set_at([index], counted_clock(clocks, clocks[index]))
        with tf.control_dependencies([counted]):
            return self.wait(variables, index, local_step, tf.constant(-1, tf.int64))


def waits_of(job: Job) -> Waits:
    """The waits of the job's mode."""
    match job.update.mode:
        case "async":
            return AsyncWaits()
        case "ssp":
            return SspWaits(job.update.bound or 0)
        case _:
            return SyncWaits()


def among_all(variables: ShardVariables, index: Index) -> Callable[[], tf.Operation]:
    """Registers a worker for a token after an update of any worker."""
    return lambda: variables.waiting.enqueue(index)


def pass_barrier(
    variables: ShardVariables,
    index: Index,
    read: Callable[[], tf.Tensor],
    is_open: Callable[[tf.Tensor], tf.Tensor],
    register: Callable[[], tf.Operation],
) -> tf.Tensor:
    """A loop on the ps that waits for a worker's tokens until what it reads there opens the barrier.

    Before each wait it registers for a token and then reads again, so that it cannot miss an update; see
    `ps_service.updates.tokens`.

    Args:
        register: Makes the operation that registers.

    Returns:
        What it has read last.
    """

    def wait() -> tf.Tensor:
        with tf.control_dependencies([variables.tokens.take(index)]):
            return read()

    def try_again(value: tf.Tensor) -> tf.Tensor:
        del value
        with tf.control_dependencies([register()]):
            registered = read()
        return tf.cond(is_open(registered), lambda: tf.identity(registered), wait)

    return v1.while_loop(lambda value: tf.logical_not(is_open(value)), try_again, [read()], parallel_iterations=1)
