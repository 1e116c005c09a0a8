"""Ends a step early that the fleet has completed without this worker, whose gradient would be dropped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from psfleet.job.job import Job
from worker_service.cancellation_points import add_points
from worker_service.exchanges import push
from worker_service.frontends.interface import TrainingGraph
from worker_service.loss_step import LossStep, local_variable
from worker_service.pulled import Pulled
from worker_service.push_pull import Exchange

MESSAGE = "psfleet: the fleet has completed this step"
"""Of the error that ends it."""
CPU = "/device:CPU:0"
"""Where an assertion is one: on a GPU it does nothing."""


def may_abandon_steps(job: Job) -> bool:
    """Whether workers of a job abandon steps: in sync mode, if a step needs fewer gradients than there are workers."""
    return job.update.mode == "sync" and job.fleet.replicas > job.quorum


def is_abandonment(error: tf.errors.OpError) -> bool:
    """Whether an error ended a step that was abandoned."""
    return MESSAGE in error.message


class Abandonment:
    """The part of a step's graph that ends it early.

    A step that may end early also waits for all ps from its beginning, and pulls, for which each ps gets the local step
    at once: a small message more. If the fleet completes it before this worker has its gradient, the worker keeps what
    it has pulled, and an error ends the call at one of the points between its operations: see `add_points`. Any other
    step waits and pulls after its push: one that is late would else end with the parameters of the step after it,
    wherever the fleet is by then.

    The chief does not abandon the final step, which belongs to its records.

    Args of the constructor:
        index: Of the worker.
        num_segments: Of all ps.
        local_step: int64 scalar on the worker.

    Attributes:
        taken: To be run after a step was abandoned: int64 `[num_segments, 2]`, global step and final step of each
            segment, as `StepGraph.steps` returns them.
    """

    def __init__(self, index: int, num_segments: int, local_step: tf.Tensor) -> None:
        self._index = index
        self._local_step = local_step
        with tf.device(CPU):
            self._computed = local_variable("computed_step", [], tf.int64)
            self._is_over = local_variable("is_over", [], tf.bool)
            self._progress = local_variable("progress", [num_segments, 2], tf.int64)
            with tf.control_dependencies([self._is_over.assign(False, read_value=False)]):
                self.taken = self._progress.read_value()

    def add_points(self, operations: Sequence[tf.Operation], training: TrainingGraph) -> None:
        """Adds points to the operations of a program at which a step ends that the fleet has completed.

        A program with several losses gets none: operations of one of them would wait for those of another. Nor does one
        on a GPU, where operations are only queued, and each point would wait until the queue is empty.
        """
        if len(training.each) > 1 or tf.config.list_physical_devices("GPU"):
            return
        tables = [table.values for table in training.tables]
        results = [training.loss, *training.gradients, *training.new_state, *tables]

        def failing() -> tf.Operation:
            with tf.device(CPU):
                return tf.raw_ops.Assert(condition=tf.logical_not(self._is_over.read_value()), data=[MESSAGE])

        add_points(operations, results, failing, self._local_step.device)

    def step(
        self,
        part: LossStep,
        loss: int,
        exchanges: Sequence[Sequence[Exchange]],
        state: tf.Variable,
        number: tf.Tensor,
        keep: Callable[[Sequence[Pulled]], tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Operation]]:
        """Adds a step with one of the losses that ends early if the fleet has completed it.

        Args:
            part: With the loss and its gradient.
            loss: Its index.
            exchanges: By ps and segment.
            state: This worker's.
            number: Of the gradient, int64 scalar on the worker.
            keep: Stores what is pulled; returns `Pulled.progress` of each segment.

        Returns:
            The loss, and what `keep` returns; and operations on the ps that have to end, too.
        """
        with tf.device(state.device):
            states = zip(
                *(tf.split(each, len(exchanges)) for each in (part.new_state, state.read_value())), strict=True
            )
            stamp = tf.stack([self._local_step, number])
            computed = [self._when_computed(part)]
        after, ends = [], []
        before: list[list[Pulled]] = []
        for shard, (of_shard, own) in enumerate(zip(exchanges, states, strict=True)):
            before.append([])
            for each in push(of_shard, part.gradients, stamp, own, (), loss, part.tables, () if shard else computed):
                (pulled, earlier), ended = each.exchange.await_beside_push(
                    each.operations, self._local_step, each.states
                )
                after.append(pulled)
                before[-1].append(earlier)
                ends.append(ended)
        with tf.device(state.device):
            checked = self._checked(before, keep)
            with tf.control_dependencies([checked, *computed, *part.updates]):
                return [part.loss, keep(after)], ends

    def _when_computed(self, part: LossStep) -> tf.Operation:
        """From then on the step is not abandoned: the worker has all results.

        The last push to ps 0 comes after it: a step is not abandoned whose gradient counts as used.
        """
        tables = [table.values for table in part.tables]
        with tf.control_dependencies([*part.gradients, part.new_state, *tables]):
            # Local steps begin with 0, as the variable does.
            return self._computed.assign(self._local_step + 1, read_value=False)

    def _checked(
        self, of_shards: Sequence[Sequence[Pulled]], keep: Callable[[Sequence[Pulled]], tf.Tensor]
    ) -> tf.Tensor:
        """Is known when the step is not abandoned, once everything is pulled."""
        pulled = list(itertools.chain(*of_shards))
        progress = tf.stack([segment.progress for segment in pulled])
        with tf.control_dependencies([progress, *[bucket for segment in pulled for bucket in segment.buckets]]):
            is_late = tf.not_equal(self._computed.read_value(), self._local_step + 1)
        if self._index == 0:
            # A stop changes that of a shard's first segment only.
            final_steps = tf.stack([of_shard[0].progress[1] for of_shard in of_shards for _ in of_shard])
            is_late &= tf.reduce_any(progress[:, 0] < final_steps)

        def abandon() -> tf.Tensor:
            with tf.control_dependencies([self._progress.assign(keep(pulled), read_value=False)]):
                ended = self._is_over.assign(True, read_value=False)
            with tf.device(CPU), tf.control_dependencies([ended]):
                failed = tf.raw_ops.Assert(condition=tf.logical_not(is_late), data=[MESSAGE])
            with tf.control_dependencies([failed]):
                return tf.constant(True)

        return tf.cond(is_late, abandon, lambda: tf.constant(False))
