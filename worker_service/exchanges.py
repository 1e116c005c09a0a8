"""A worker's exchanges with all segments of all ps, and the order of its pushes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf import keeps_previous, shard_segments
from psfleet.tf.optimizer_slots import OptimizerSlots
from worker_service.connected import ConnectedExchanges
from worker_service.connections import Connections
from worker_service.frontends.table_rows import TableGradient
from worker_service.pulled import Pulled
from worker_service.push_pull import Exchange

PUSHES_IN_FLIGHT = 2
"""Pushes that travel to one ps at once: the link is busy while the ps says that it has received one of them."""


def exchanges_of(
    job: Job, layout: Layout, index: int, own_device: str, container: str, slots: OptimizerSlots
) -> list[list[Exchange]]:
    """The segments of each ps; see `Exchange`."""
    by_ps = [shard_segments(job, layout, shard) for shard in range(layout.num_ps)]
    has_previous = keeps_previous(job, sum(map(len, by_ps)))
    return [
        [Exchange(job, layout, shard, each, index, own_device, container, has_previous, slots) for each in of_shard]
        for shard, of_shard in enumerate(by_ps)
    ]


@dataclass(frozen=True)
class Pushed:
    """A gradient on its way to one segment.

    Attributes:
        exchange: With the segment.
        operations, stamp: Those that `Exchange.push` returns.
        states: uint8 `[state shard size]`, of the worker; empty tensors in segments other than the first.
    """

    exchange: Exchange
    operations: Sequence[tf.Operation]
    stamp: tf.Tensor
    states: Sequence[tf.Tensor]


def push(
    of_shard: Sequence[Exchange],
    gradients: Sequence[tf.Tensor],
    stamp: tf.Tensor,
    states: Sequence[tf.Tensor],
    slots: Sequence[tf.Tensor] = (),
    loss: int = 0,
    tables: Sequence[TableGradient] = (),
    before_last: Sequence[tf.Operation] = (),
) -> list[Pushed]:
    """Pushes to the segments of a ps; other arguments are those of `Exchange.push`.

    The last segment is pushed first, as gradients of the last layers are known first. A few pushes travel at once, in
    the same order from all workers. So the first ones have arrived from everywhere, are averaged and pulled while the
    others travel, and both directions of a link are busy at once. If all travelled together, all would arrive at the
    end.

    Args:
        states: Each uint8 `[state shard size]`; the first is that after the forward pass, which is pushed.
        before_last: Operations on the worker that end before the last push, that of the first segment, begins.

    Returns:
        By segment.
    """
    pushed: list[Pushed] = []
    with tf.device(states[0].device):
        no_states = [tf.zeros([0], tf.uint8)] * len(states)
    for exchange in reversed(of_shard):
        own = states if exchange.segment.is_first else no_states
        after = [pushed[-PUSHES_IN_FLIGHT].stamp] if len(pushed) >= PUSHES_IN_FLIGHT else []
        after += before_last if exchange.segment.is_first else ()
        pushed.append(Pushed(exchange, *exchange.push(gradients, stamp, own[0], slots, loss, tables, after), own))
    return pushed[::-1]


def pull_after(pushed: Sequence[Pushed]) -> list[Pulled]:
    """Waits for each segment that a gradient was pushed to, and pulls it."""
    return [each.exchange.await_and_pull(each.operations, each.stamp, each.states[0]) for each in pushed]


class StepExchanges:
    """The exchanges of a worker's steps with all ps: by connections, or by TensorFlow's servers.

    Args of the constructor:
        index: Of the worker.
        own_device: The worker's.
        of_ps: Those by TensorFlow's servers, by ps and segment.
        connections: Of the worker; None: there are none.

    Attributes:
        num_ps: How many there are.
        session_number: See `StepGraph`.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        index: int,
        own_device: str,
        of_ps: Sequence[Sequence[Exchange]],
        connections: Connections | None,
    ) -> None:
        self.num_ps = len(of_ps)
        self._of_ps = of_ps
        self.session_number: tf.Tensor | None = None
        self._connected: ConnectedExchanges | None = None
        if connections is not None:
            self.session_number = v1.placeholder(tf.int64, [], name="session")
            own = connections, self.session_number, own_device
            self._connected = ConnectedExchanges(job, layout, index, of_ps, *own)

    def push_and_pull(
        self,
        gradients: Sequence[tf.Tensor],
        stamps: Sequence[tf.Tensor],
        states: Sequence[tf.Tensor],
        slots: Sequence[tf.Tensor] = (),
        loss: int = 0,
        tables: Sequence[TableGradient] = (),
    ) -> list[Pulled]:
        """Pushes to, waits for and pulls from each ps independently; the segments of all ps.

        Args:
            stamps, states: By ps; see `Exchange.push`, as for all others.
        """
        found: dict[int, list[Pulled]] = {}
        if self._connected is not None:
            found = self._connected.push_and_pull(gradients, stamps, states, slots, loss)
        pushed = {
            shard: push(of_shard, gradients, stamps[shard], [states[shard]], slots, loss, tables)
            for shard, of_shard in enumerate(self._of_ps)
            if shard not in found
        }
        found |= {shard: pull_after(each) for shard, each in pushed.items()}
        return [pulled for _, of_shard in sorted(found.items()) for pulled in of_shard]
