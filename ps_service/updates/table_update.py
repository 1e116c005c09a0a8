"""The update of a shard's embedding tables, as a part of the update of its buckets."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ps_service.base_rate import BaseRate
from ps_service.shard_plan import ShardPlan
from psfleet.tf import ShardVariables, optimizers
from psfleet.tf.table_calls import apply_rows, shard_name

TableUpdate = Callable[[tf.Tensor], list[tf.Operation]]
"""Applies the rows that belong to the gradients of contributors, int64 `[worker_limit]`; none without tables."""


def table_update(plan: ShardPlan, variables: ShardVariables, base_rate: BaseRate) -> TableUpdate:
    """The update of the tables of a job."""
    job, tables = plan.job, plan.layout.embeddings

    def update(contributors: tf.Tensor) -> list[tf.Operation]:
        if not tables:
            return []
        with tf.control_dependencies([contributors]):
            step = variables.global_step.read_value()
        rate = optimizers.learning_rate(job.rule, step, base_rate.read())
        own = [job.tables[table.key].learning_rate for table in tables]
        factors = [1.0 if each is None else each / (job.rule.learning_rate or 1.0) for each in own]
        name = shard_name(variables.container, plan.shard)
        return [apply_rows(name, contributors, step, rate * tf.constant(factors))]

    return update
