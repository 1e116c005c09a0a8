"""A worker's exchanges with all segments of all ps, and the order of its pushes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf import keeps_previous, shard_segments
from psfleet.tf.optimizer_slots import OptimizerSlots
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


def push_and_pull(
    of_shard: Sequence[Exchange],
    gradients: Sequence[tf.Tensor],
    stamp: tf.Tensor,
    state: tf.Tensor,
    slots: Sequence[tf.Tensor] = (),
    loss: int = 0,
    tables: Sequence[TableGradient] = (),
) -> list[Pulled]:
    """Pushes to the segments of a ps, waits for each and pulls it; arguments are those of `Exchange.push`.

    The last segment is pushed first, as gradients of the last layers are known first. A few pushes travel at once, in
    the same order from all workers. So the first ones have arrived from everywhere, are averaged and pulled while the
    others travel, and both directions of a link are busy at once. If all travelled together, all would arrive at the
    end.
    """
    pulled: list[Pulled] = []
    arrived: list[tf.Tensor] = []
    with tf.device(state.device):
        no_state = tf.zeros([0], tf.uint8)
    for exchange in reversed(of_shard):
        own = state if exchange.segment.is_first else no_state
        after = [arrived[-PUSHES_IN_FLIGHT]] if len(arrived) >= PUSHES_IN_FLIGHT else []
        pushed, known = exchange.push(gradients, stamp, own, slots, loss, tables, after)
        arrived.append(known)
        pulled.append(exchange.await_and_pull(pushed, known, own))
    return pulled[::-1]
