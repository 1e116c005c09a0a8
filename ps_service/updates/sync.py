"""Sync mode: each step applies the average of `quorum` gradients; each ps is the chief of its own shard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.admission import Admitted, admit_quorum
from ps_service.updates.final_step import began_step
from ps_service.updates.interface import timed
from ps_service.updates.table_update import TableUpdate
from ps_service.updates.tokens import TokenSender
from psfleet.tf import ShardVariables
from psfleet.tf.optimizer_slots import from_words, to_words
from psfleet.tf.own_session import OwnSession

MAX_TOKENS = 2
"""Tokens in a worker's queue: for the worker, and for a predecessor whose end TensorFlow has not noticed yet.

A search of all interleavings of a ps, two workers, and a successor of one of them over two steps (718,725 states) found
none in which a worker waits forever; with one token the predecessor can take that of its successor.
"""


class ContributorCounter(v1.train.Optimizer):
    """Wraps an optimizer: counts the gradients of each worker in an average, writes state and scalars, measures.

    Args of the constructor:
        admitted: The gradients in the average, and what came with them.
        tables: Their update; None: the mode has none.
        next_step: The global step after the update that begins at a global step, int64 scalars.
    """

    def __init__(
        self,
        optimizer: v1.train.Optimizer,
        variables: ShardVariables,
        admitted: Admitted,
        next_step: Callable[[Any], Any],
        tables: TableUpdate | None,
    ) -> None:
        super().__init__(use_locking=False, name="ContributorCounter")
        self._wrapped = optimizer
        self._variables = variables
        self._admitted = admitted
        self._next_step = next_step
        self._tables = tables

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """See tf.compat.v1.train.Optimizer."""
        pairs = list(grads_and_vars)
        counted = self._variables.used.assign_add(self._admitted.contributors, read_value=False)
        averages = [average for average, _ in pairs]
        kept = self._begin_step()
        with tf.control_dependencies(kept):
            written = [self._variables.state.assign(state, read_value=False) for state in self._admitted.state]
            scalars = list(self._variables.scalars.values())
            values = from_words(self._admitted.words, [scalar.dtype for scalar in scalars])
            written += [scalar.assign(value, read_value=False) for scalar, value in zip(scalars, values, strict=True)]
            if self._tables is not None:
                written += self._tables.of_tickets(self._admitted.tickets)
        # Before the update, which changes the global step last: a worker that reads the global step and then the state
        # gets the state of that step or of a later one. In scopes, scalars of all segments have the same names.
        with tf.control_dependencies([counted, *kept, *written]), tf.name_scope(self._variables.scope):
            return timed(self._variables, averages, lambda: self._wrapped.apply_gradients(pairs, global_step, name))

    def _begin_step(self) -> list[tf.Operation]:
        """Before the update, once its contributors are known: settles the final step, copies parameters and state."""
        variables = self._variables
        with tf.control_dependencies([self._admitted.contributors]):
            began = began_step(variables, self._next_step(variables.global_step.read_value()))
        with tf.control_dependencies([began]):
            pairs = list(zip(variables.previous, variables.exchanged if variables.previous else [], strict=True))
            pairs += [(previous, variables.state) for previous in variables.previous_state]
            kept = [previous.assign(present.read_value(), read_value=False) for previous, present in pairs]
            words = to_words([scalar.read_value() for scalar in variables.scalars.values()])
            kept += [previous.assign(words, read_value=False) for previous in variables.previous_words]
            return [began, *kept]


class SegmentUpdate:
    """`SyncReplicasOptimizer` over the buckets of one segment, with the operations of its chief's queue runner.

    The class has one token queue for all workers. A token that a slow or dead worker left there lets a fast worker
    through the barrier early, and twice into one average. Here the ps dequeues the class's tokens itself and sends a
    token to the own queue of each worker that waits.

    Args of the constructor: see `SyncUpdates`.

    Attributes:
        optimizer: Of this segment, with slots and scalars of its own.
        updated: int64 scalar, the global step after an update, which it waits for.
        sent: The same, after tokens were sent to the workers that wait. Only the value of `updated` leads from the
            update to the tokens: a call that feeds it sends them alone.
        ready: Operations that set accumulators and queues to the restored global step.
    """

    def __init__(
        self,
        variables: ShardVariables,
        optimizer: v1.train.Optimizer,
        quorum: int,
        num_replicas: int,
        next_step: Callable[[Any], Any],
        tables: TableUpdate | None,
    ) -> None:
        self.optimizer = optimizer
        with v1.container(variables.container):
            admitted = admit_quorum(variables, quorum)
            counter = ContributorCounter(optimizer, variables, admitted, next_step, tables)
            sync = v1.train.SyncReplicasOptimizer(
                counter, replicas_to_aggregate=quorum, total_num_replicas=num_replicas
            )
            # Builds the accumulators and the chief's operations. This ps never runs the operation that pushes zeros.
            zeros = [(tf.zeros(each.shape), each) for each in variables.exchanged]
            sync.apply_gradients(zeros, global_step=variables.global_step)
            sync.ready_for_local_init_op.mark_used()
            runner = sync.get_chief_queue_runner()
            with tf.control_dependencies(runner.enqueue_ops):
                # All segments share the queue. Its tokens are equal: a call makes the same step of each segment.
                tokens = runner.queue.dequeue_many(max(quorum, num_replicas))
        self.updated = tokens[0]
        sender = TokenSender(variables, MAX_TOKENS)
        with tf.control_dependencies([sender.release(tf.identity(self.updated))]):
            self.sent = tf.identity(self.updated)
        self.ready = [sync.chief_init_op, sender.initializer]


class SyncUpdates:
    """The updates of all segments of a shard; a call makes one of each, in the order in which pushes arrive.

    Args of the constructor:
        segments: Variables and optimizer of each.
        next_step: The global step to which an optimizer brings a shard from a global step, int64 scalars.
        tables: Their update; None: the mode has none.
    """

    def __init__(
        self,
        segments: Sequence[tuple[ShardVariables, v1.train.Optimizer]],
        quorum: int,
        num_replicas: int,
        next_step: Callable[[Any], Any] = lambda step: step + 1,
        tables: TableUpdate | None = None,
    ) -> None:
        self.optimizers = [optimizer for _, optimizer in segments]
        parts = [SegmentUpdate(*segment, quorum, num_replicas, next_step, tables) for segment in segments]
        self._parts = [part.updated for part in parts]
        self._updated, self._updated_and_sent = _of_all(self._parts), _of_all([part.sent for part in parts])
        self._ready = [part.ready for part in parts]
        self._advance: Callable[[], Any] | None = None
        self._global_step = 0

    def start(self, session: OwnSession) -> None:
        """Sets the accumulators to the restored global step."""
        session.run(self._ready)
        self._advance = session.make_callable(self._updated_and_sent)
        self._advance_and_hold = session.prepared(self._updated)
        self._send_tokens = session.prepared(self._updated_and_sent, *self._parts)

    def advance(self, hold: bool) -> int:
        """Waits for a quorum, averages, applies; see `Updates`."""
        assert self._advance is not None, "start() comes first"
        self._global_step = int(self._advance_and_hold()[0] if hold else self._advance())
        return self._global_step

    def set_present(self, workers: Collection[int]) -> None:
        """Does nothing: a step waits for a quorum, whoever is there. See `Updates`."""

    def release_barrier(self) -> None:
        """Sends the tokens of the newest step; see `Updates`."""
        step = np.asarray(self._global_step, np.int64)
        self._send_tokens(*[step] * len(self._parts))


def _of_all(steps: Sequence[tf.Tensor]) -> tf.Tensor:
    """The global step after the update of all segments, which have the same one."""
    return steps[0] if len(steps) == 1 else tf.reduce_min(tf.stack(steps))
