"""Admission of gradients in sync mode: which of those that workers pushed enter the average of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.interface import next_push
from ps_service.updates.state import StateUpdate
from psfleet.tf import ShardVariables


@dataclass(frozen=True)
class Admitted:
    """The quorum of a step.

    Attributes:
        contributors: The number of admitted gradients of each worker: int64 `[worker_limit]`, 1 or 0, whose sum is the
            quorum.
        state: After the step, see `StateUpdate`.
        words: The scalars that came with the gradients, which are the same in all: see `Push`.
        tickets: Of their rows, by worker: int64 `[worker_limit]`, 0 of the others; without tables all.
    """

    contributors: tf.Tensor
    state: Sequence[tf.Tensor]
    words: tf.Tensor
    tickets: tf.Tensor


def admit_quorum(variables: ShardVariables, quorum: int) -> Admitted:
    """Takes pushes from the shard's queue until `quorum` gradients are in the accumulators of `SyncReplicasOptimizer`.

    An element of the queue is a whole push, so the buckets of a gradient and the state that comes with it enter the
    average together or not at all, whenever its worker dies. A gradient is admitted if its local step is the shard's
    global step, and if none of the same worker for this step has been admitted: a worker that was killed after its push
    repeats it. The accumulators drop all others, because those get the local step -1. This loop is a part of the ps's
    own session, which ends with the ps only.

    The final step does not matter here: workers push no gradient of a step that every ps takes for the final one, and
    a stop that only some ps have accepted must not hold back the others.
    """
    global_step = variables.global_step.read_value()
    accumulators = [variables.accumulator(index) for index in range(len(variables.exchanged))]
    state = StateUpdate(variables)

    def admit_next(contributors: tf.Tensor, words: tf.Tensor, tickets: tf.Tensor, *means: tf.Tensor) -> list[tf.Tensor]:
        push = next_push(variables)
        worker, local_step = push.worker, push.local_step
        with tf.control_dependencies([worker]):
            newest = variables.last_local_step.read_element(worker)
        is_admitted = tf.equal(local_step, global_step) & (newest < local_step)
        effective = tf.where(is_admitted, local_step, tf.constant(-1, tf.int64))
        done = [
            accumulator.apply_grad(gradient, local_step=effective)
            for accumulator, gradient in zip(accumulators, push.gradients, strict=True)
        ]
        done.append(variables.last_local_step.set_at([worker], tf.maximum(newest, effective)))
        with tf.control_dependencies(done):
            own = tf.one_hot(worker, variables.worker_limit, dtype=tf.int64) * tf.cast(is_admitted, tf.int64)
            counted = contributors + own
        if variables.has_tables:
            tickets += own * push.ticket
        newest_words = tf.where(is_admitted, push.words, words)
        return [counted, newest_words, tickets, *state.added(means, push.state, worker, is_admitted, contributors)]

    none: tf.Tensor = tf.zeros([variables.worker_limit], tf.int64)
    contributors, words, tickets, *means = tf.nest.flatten(
        v1.while_loop(
            lambda contributors, *_: tf.reduce_sum(contributors) < quorum,
            admit_next,
            [none, tf.zeros([len(variables.scalars)], tf.int64), none, *state.initial_means()],
            parallel_iterations=1,
        )
    )
    return Admitted(contributors, state.joined(means), words, tickets)
