"""The graph of a ps that takes the pushes of workers which arrive on connections, and reads what they pull."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.segment_variables import segment_variables
from ps_service.shard_plan import ShardPlan
from ps_service.worker_record import CHIEF
from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.message_layout import MessageLayout
from psfleet.layout.segments import Segment
from psfleet.tf import ShardVariables, container_name, shard_segments
from psfleet.tf.optimizer_slots import exchanged_slots
from psfleet.tf.own_session import OwnSession, repeat_refused, unoptimized
from psfleet.tf.ps_half import PsHalf, buckets_of, pushed_kinds, rounded, with_zeros
from psfleet.tf.repeated_call import RepeatedCall
from psfleet.tf.state_wire import StateWire
from psfleet.tf.waits import waits_of

SMALL_BYTES = 1 << 20
"""A push of at most this size stays in memory while its worker waits, which saves a call of the session."""


@dataclass(frozen=True)
class ExchangeCall:
    """Takes a push of one loss to one segment, waits as the mode demands, and reads what the worker pulls.

    Attributes:
        pushed: Buffers for the tensors of a push, in the order of `ConnectedSegment.pushed_tensors`.
        push: Of the worker's index and these tensors; enqueues them, and returns their stamp in a list. None: `pull`
            does.
        pull: Of the worker's index and the stamp, or all tensors; returns the tensors of the reply.
    """

    pushed: BufferPool
    push: Callable[..., list[np.ndarray]] | None
    pull: Callable[..., list[np.ndarray]]

    def run(self, worker: int, tensors: list[np.ndarray]) -> list[np.ndarray]:
        """The tensors of the reply, arrays that may share the memory of the shard's variables.

        Args:
            worker: Index of the worker.
            tensors: Of its push; if they are large, the list is emptied: TensorFlow keeps what is fed until a call
                ends, and the push is not needed once it is in the average.
        """
        index = np.asarray(worker, np.int32)
        if self.push is None:
            return self.pull(index, *tensors)
        stamp = self.push(index, *tensors)
        tensors.clear()
        return self.pull(index, *stamp)


@dataclass(frozen=True)
class _Made:
    """The operations of an exchange.

    Attributes:
        pushed: The tensors of a push, which are fed.
        layout: Of these.
        stamped: Its stamp once it is enqueued; fed, the reply is that to a push before.
        reply: The tensors of the reply.
        is_split: Whether push and reply are two calls.
    """

    pushed: list[tf.Tensor]
    layout: MessageLayout
    stamped: tf.Tensor
    reply: list[tf.Tensor]
    is_split: bool


class ExchangeGraph:
    """A graph with an exchange for each segment and loss, in a session on this process's own server.

    Operations are those of a worker's graph, see `PsHalf`; the variables are found by their names.

    Args of the constructor:
        session_target: Address of this process's TensorFlow server, `grpc://host:port`.

    Attributes:
        step_secs: Until a step is complete.
    """

    def __init__(self, session_target: str, plan: ShardPlan) -> None:
        job = plan.job
        self._wire = tf.dtypes.as_dtype(job.update.wire)
        self._options = v1.RunOptions(timeout_in_ms=int(job.round_secs * 1000))
        # A while loop of control flow v2 is a function call; see `StepGraph`.
        v1.disable_control_flow_v2()
        self.step_secs = job.round_secs
        self._made: dict[tuple[int, int, bool], _Made] = {}
        with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
            self._index = v1.placeholder(tf.int32, [], name="worker")
            segments = shard_segments(job, plan.layout, plan.shard)
            container, slots = container_name(plan.run, plan.generation), exchanged_slots(job, plan.update)
            variables = segment_variables(plan, container, slots)
            for segment, own in zip(segments, variables, strict=True):
                half = PsHalf(own, waits_of(job), self._index)
                for loss in range(max(1, len(plan.layout.parameters.losses))):
                    for is_chief in (False, True) if own.state_ranges else (False,):
                        self._made[segment.index, loss, is_chief] = self._exchange(own, segment, half, loss, is_chief)
        graph.finalize()
        self._session = OwnSession(session_target, graph=graph, config=unoptimized())
        self._lock = threading.Lock()
        self._calls: dict[tuple[int, int, bool], ExchangeCall] = {}

    @property
    def num_segments(self) -> int:
        """Of the shard."""
        return 1 + max(segment for segment, _, _ in self._made)

    def call(self, segment: int, loss: int, worker: int) -> ExchangeCall | None:
        """The exchange of a worker; None: there is no such segment or loss. Prepared when it is first needed."""
        key = self._key(segment, loss, worker)
        if key not in self._made:
            return None
        with self._lock:
            if key not in self._calls:
                made = self._made[key]
                push = self._prepared([made.stamped], made.pushed) if made.is_split else None
                pull = self._prepared(made.reply, [made.stamped] if made.is_split else made.pushed)
                self._calls[key] = ExchangeCall(BufferPool(made.layout.kinds), push, pull)
            return self._calls[key]

    def layouts(self, worker: int) -> dict[tuple[int, int], MessageLayout]:
        """The tensors of the pushes of a worker, by segment and loss."""
        keys = {(segment, loss) for segment, loss, _ in self._made}
        return {key: self._made[self._key(*key, worker)].layout for key in keys}

    def _key(self, segment: int, loss: int, worker: int) -> tuple[int, int, bool]:
        """Of the operations of a worker: the chief has others if the segment has state."""
        key = segment, loss, worker == CHIEF
        return key if key in self._made else (segment, loss, False)

    def _prepared(self, fetches: Sequence[tf.Tensor], feeds: Sequence[tf.Tensor]) -> Callable[..., list[np.ndarray]]:
        """Not a callable of TensorFlow, which a server gets as a message: with copies of all tensors."""
        return repeat_refused(RepeatedCall(self._session, fetches, [self._index, *feeds], self._options))

    def close(self) -> None:
        """Closes the session; calls end with an error once the queues of the shard are closed."""
        self._session.close()

    def _exchange(self, variables: ShardVariables, segment: Segment, half: PsHalf, loss: int, is_chief: bool) -> _Made:
        own = buckets_of(segment, loss)
        state_wire = StateWire(variables.state_ranges, is_chief, tf.uint8)
        layout = MessageLayout(pushed_kinds(variables, own, state_wire, self._wire))
        pushed = [v1.placeholder(kind.dtype, [kind.size]) for kind in layout.kinds]
        stamp, *rest = pushed
        states = [rest.pop(0) for _ in state_wire.push_sizes]
        buckets, slots = rest[: len(own)], rest[len(own) :]
        arrived = [tf.cast(bucket, tf.float32) for bucket in buckets] + slots
        arrived_state, _ = state_wire.pushed(states[0] if states else tf.zeros([0], tf.uint8))
        arrived = [*with_zeros(segment.buckets, own, arrived), *arrived_state]
        counted, before = half.count(arrived, stamp)
        enqueued = half.enqueue(arrived, counted, before)
        is_split = sum(bucket.size for bucket in own) * self._wire.size > SMALL_BYTES
        with tf.control_dependencies(enqueued):
            stamped = tf.identity(counted)
        # Only the value of `stamped` leads from the push to the wait: a call that feeds it waits for a push before.
        awaited = tf.identity(stamped)
        waited = half.await_pull([awaited.op], awaited)
        progress, values, state, words = half.read([waited])
        numbers = tf.concat([progress, words], 0) if variables.scalars else progress
        reply = [numbers, *state_wire.pull(state), *rounded(variables, values, self._wire)]
        return _Made(pushed, layout, stamped, reply, is_split)
