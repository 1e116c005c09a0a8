"""The update of a shard's embedding tables, as a part of the update of its buckets."""

from __future__ import annotations

import tensorflow as tf

from ps_service.base_rate import BaseRate
from ps_service.shard_plan import ShardPlan
from psfleet.tf import ShardVariables, optimizers
from psfleet.tf.table_calls import apply_rows, drop_rows, shard_name


class TableUpdate:
    """Applies the rows of gradients; adds no operation to the graph of a job without tables."""

    def __init__(self, plan: ShardPlan, variables: ShardVariables, base_rate: BaseRate) -> None:
        self._plan = plan
        self._variables = variables
        self._base_rate = base_rate

    def of_tickets(
        self, tickets: tf.Tensor, rate_factor: tf.Tensor | float = 1.0, gradient_factor: tf.Tensor | float = 1.0
    ) -> list[tf.Operation]:
        """The mean of the gradients of a step; in modes async and ssp one gradient.

        Args:
            tickets: int64 `[n]`, of the rows that were staged with each; zeros are left out.
            rate_factor, gradient_factor: See `StalePolicy`.
        """
        plan, job = self._plan, self._plan.job
        if not plan.layout.embeddings:
            return []
        with tf.control_dependencies([tickets]):
            step = self._variables.global_step.read_value()
        rate = optimizers.learning_rate(job.rule, step, self._base_rate.read()) * rate_factor
        own = [job.tables[table.key].learning_rate for table in plan.layout.embeddings]
        factors = [1.0 if each is None else each / (job.rule.learning_rate or 1.0) for each in own]
        name = shard_name(self._variables.container, plan.shard)
        used = tf.boolean_mask(tickets, tickets > 0)
        return [apply_rows(name, used, step, rate * tf.constant(factors), gradient_factor)]

    def dropped(self, worker: tf.Tensor, number: tf.Tensor) -> list[tf.Operation]:
        """Modes async and ssp: discards the rows of a gradient that is dropped.

        Args:
            worker: int32 scalar.
            number: int64 scalar, of the gradient.
        """
        if not self._plan.layout.embeddings:
            return []
        return [drop_rows(shard_name(self._variables.container, self._plan.shard), worker, number)]
