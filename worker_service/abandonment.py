"""Ends a step early that the fleet has completed without this worker, whose gradient would be dropped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from worker_service.exchanges import Pushed
from worker_service.loss_step import LossStep, local_variable
from worker_service.pulled import Pulled

MESSAGE = "psfleet: the fleet has completed this step"
"""Of the error that ends it."""
MAX_IN_A_BURST = 100
SECS_EACH = 10.0
"""TensorFlow never frees about 4 kB of each call that fails: 30 MB in a day."""


def may_abandon_steps(job: Job) -> bool:
    """Whether workers of a job abandon steps: in sync mode, if a step needs fewer gradients than there are workers."""
    return job.update.mode == "sync" and job.fleet.replicas > job.quorum


def is_abandonment(error: tf.errors.OpError) -> bool:
    """Whether an error ended a step that was abandoned."""
    return MESSAGE in error.message


class Allowance:
    """Which steps of a worker may be abandoned.

    Not one after another that was, and on average one in `SECS_EACH`. A pause saves up to `MAX_IN_A_BURST`.

    Args of the constructor:
        clock: In seconds, never set back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(MAX_IN_A_BURST)
        self._counted = clock()
        self._was_abandoned = False

    def is_given(self) -> bool:
        """Whether the next step may be abandoned."""
        now = self._clock()
        self._left = min(MAX_IN_A_BURST, self._left + (now - self._counted) / SECS_EACH)
        self._counted = now
        return self._left >= 1 and not self._was_abandoned

    def step_ended(self, was_abandoned: bool) -> None:
        """The newest step has ended."""
        self._was_abandoned = was_abandoned
        self._left -= was_abandoned


class Abandonment:
    """The part of a step's graph that ends it early.

    A step that may end early also waits for all ps from its beginning, and pulls, for which each ps gets the local step
    at once: a small message more. If the fleet completes it before this worker has its gradient, the worker keeps what
    it has pulled, and an error ends the call: TensorFlow then starts no further operation of it, on any of its tasks.
    Those that run come to their end. Any other step waits and pulls after its push: one that is late would else end
    with the parameters of the step after it, wherever the fleet is by then.

    The chief does not abandon the final step, which belongs to its records.

    Args of the constructor:
        index: Of the worker.
        num_segments: Of all ps.
        local_step: int64 scalar on the worker.

    Attributes:
        is_allowed: bool scalar placeholder.
        progress: int64 variable `[num_segments, 2]`: global step and final step of each segment, as `StepGraph.steps`
            returns them, after a step was abandoned.
    """

    def __init__(self, index: int, num_segments: int, local_step: tf.Tensor) -> None:
        self._index = index
        self._local_step = local_step
        self.is_allowed = v1.placeholder(tf.bool, [], name="may_abandon")
        self._computed = local_variable("computed_step", [], tf.int64)
        self.progress = local_variable("progress", [num_segments, 2], tf.int64)

    def computed(self, part: LossStep) -> tf.Operation:
        """From now on the step is not abandoned: the worker has all results.

        The last push to ps 0 comes after it: a step is not abandoned whose gradient counts as used.
        """
        tables = [table.values for table in part.tables]
        with tf.control_dependencies([*part.gradients, part.new_state, *tables]):
            # Local steps begin with 0, as the variable does.
            return self._computed.assign(self._local_step + 1, read_value=False)

    def pull(
        self,
        pushed: Sequence[Sequence[Pushed]],
        done: Sequence[tf.Operation],
        keep: Callable[[Sequence[Pulled]], tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Operation]]:
        """Waits and pulls beside the computation of the gradient; ends the step early if the fleet has completed it.

        Args:
            pushed: By ps and segment; states are the worker's after the step and before it.
            done: Operations that end with a step that is not abandoned.
            keep: Stores what is pulled; returns `Pulled.progress` of each segment.

        Returns:
            What `keep` returns; and operations on the ps that are a part of the step.
        """
        with tf.device(self._computed.device):
            early_step = tf.where(self.is_allowed, self._local_step, tf.constant(-1, tf.int64))
        after, ends = [], []
        before: list[list[Pulled]] = []
        for of_shard in pushed:
            before.append([])
            for each in of_shard:
                (own, earlier), ended = each.exchange.await_beside_push(
                    each.operations, each.stamp, early_step, each.states
                )
                after.append(own)
                before[-1].append(earlier)
                ends.append(ended)
        with tf.device(self._computed.device), tf.control_dependencies([self._checked(before, keep), *done]):
            return keep(after), ends

    def _checked(
        self, of_shards: Sequence[Sequence[Pulled]], keep: Callable[[Sequence[Pulled]], tf.Tensor]
    ) -> tf.Tensor:
        """Is known when the step is not abandoned, once everything is pulled."""
        pulled = list(itertools.chain(*of_shards))
        progress = tf.stack([segment.progress for segment in pulled])
        with tf.control_dependencies([progress, *[bucket for segment in pulled for bucket in segment.buckets]]):
            is_late = self.is_allowed & tf.not_equal(self._computed.read_value(), self._local_step + 1)
        if self._index == 0:
            # A stop changes that of a shard's first segment only.
            final_steps = tf.stack([of_shard[0].progress[1] for of_shard in of_shards for _ in of_shard])
            is_late &= tf.reduce_any(progress[:, 0] < final_steps)

        def abandon() -> tf.Tensor:
            with tf.control_dependencies([self.progress.assign(keep(pulled), read_value=False)]):
                failed = tf.raw_ops.Assert(condition=tf.logical_not(is_late), data=[MESSAGE])
            with tf.control_dependencies([failed]):
                return tf.constant(True)

        return tf.cond(is_late, abandon, lambda: tf.constant(False))
