"""Ssp mode: as async, and a worker waits at ps 0 while it is too many steps ahead of the slowest one."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from psfleet.tf import ShardVariables
from psfleet.tf.clocks import counted_clock, lowest_clock
from worker_service.batches import BatchSource
from worker_service.session_start import SessionStart
from worker_service.updates.asynchronous import AsyncPart
from worker_service.updates.interface import StepSession, pass_barrier

CLOCK_SHARD = 0
"""The shard whose ps keeps the clocks."""


class SspPart(AsyncPart):
    """See `UpdatePart`.

    Args of the constructor:
        bound: Steps that a worker may be ahead of the slowest one when it begins a step.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def wait(self, variables: ShardVariables, index: int, local_step: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
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

        return pass_barrier(variables, index, may_begin, lambda is_open: is_open)

    def wait_to_begin(self, variables: ShardVariables, index: int, local_step: tf.Tensor) -> tf.Tensor:
        """Counts this worker from now on, and waits as after a gradient."""
        if variables.shard != CLOCK_SHARD:
            return super().wait_to_begin(variables, index, local_step)
        clocks = variables.clocks.read_value()
        counted = variables.clocks.set_at([index], counted_clock(clocks, clocks[index]))
        with tf.control_dependencies([counted]):
            return self.wait(variables, index, local_step, tf.constant(-1, tf.int64))

    def begin(self, session: StepSession, batches: BatchSource, start: SessionStart) -> np.ndarray:
        """Reads the first batch, for which nobody has to wait; only then this worker is counted, and pulls again."""
        batches.at(batches.numbers.next(start.global_step))
        return session.await_step(start.global_step)
