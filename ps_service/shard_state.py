"""The state of a shard, as the control plane returns it."""

from __future__ import annotations

import tensorflow as tf

from ps_service.shard import Shard
from psfleet.control import control_pb2 as pb
from psfleet.service.logs import RunLogger


def describe(state: pb.ShardState, shard: Shard, now: float) -> None:
    """Fills in what the shard knows without a call of TensorFlow.

    Args:
        state: Of the shard's run.
        shard: The shard.
        now: The time, as `Shard.last_update`.
    """
    plan = shard.plan
    state.generation, state.step, state.final_step = plan.generation, shard.step, shard.final_step
    state.first_step = shard.first_step
    # Read once: another thread can end the hold.
    hold_at = shard.hold.at
    if hold_at is not None:
        state.hold_at = hold_at
    state.optimizer, state.job_digest = plan.optimizer, plan.job_digest
    state.slots[:] = shard.slot_names
    state.model_bytes = shard.model_bytes
    state.tables.update(plan.layout.tables)
    state.waiting_secs = now - shard.last_update
    for part in shard.writer.parts():
        record = part.record
        state.parts.add(
            step=part.step,
            error=part.error,
            file=record.file if record else "",
            num_bytes=record.num_bytes if record else 0,
            sha256=record.sha256 if record else "",
            held=part.is_held,
        )


def add_counters(state: pb.ShardState, shard: Shard, logger: RunLogger) -> None:
    """Fills in the counts of gradients, which takes a call of TensorFlow; not those of a shard that is closed."""
    try:
        counters = shard.counters()
    except (tf.errors.OpError, RuntimeError) as error:
        # The shard was closed meanwhile: the fleet restores a checkpoint.
        logger.debug("no counts of generation %d: %s", shard.plan.generation, error)
        return
    state.pushed[:], state.used[:] = counters.pushed.tolist(), counters.used.tolist()
    state.staleness[:] = counters.staleness.sum(axis=0).tolist()
