"""The variables of each segment of a shard, in the graph of its ps."""

from __future__ import annotations

import tensorflow as tf

from ps_service.shard_plan import ShardPlan
from psfleet.tf import ShardVariables, keeps_previous, shard_segments
from psfleet.tf.optimizer_slots import OptimizerSlots


def segment_variables(plan: ShardPlan, container: str, exchanged: OptimizerSlots) -> list[ShardVariables]:
    """The variables of each segment of the shard, on its own ps."""
    job, layout = plan.job, plan.layout
    found = shard_segments(job, layout, plan.shard)
    has_previous = keeps_previous(job, layout.num_ps * len(found))
    limit = job.fleet.worker_limit
    return [ShardVariables(layout, plan.shard, limit, container, "", has_previous, exchanged, each) for each in found]


def numbers_of(variables: ShardVariables) -> list[tf.Variable]:
    """What is restored of each segment besides its buckets."""
    steps = [variables.global_step, variables.started_step, variables.final_step]
    return [*steps, variables.last_local_step, variables.last_number, variables.clocks]
