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

    def of_contributors(self, contributors: tf.Tensor) -> list[tf.Operation]:
        """Sync mode: the mean of the gradients of a step.

        Args:
            contributors: int64 `[worker_limit]`, 1 for each worker whose gradient is averaged.
        """
        if not self._plan.layout.embeddings:
            return []
        workers = tf.reshape(tf.where(contributors > 0), [-1])
        with tf.control_dependencies([contributors]):
            step = self._variables.global_step.read_value()
        return self._applied(workers, step, step)

    def of_worker(
        self, worker: tf.Tensor, number: tf.Tensor, rate_factor: tf.Tensor, gradient_factor: tf.Tensor
    ) -> list[tf.Operation]:
        """Modes async and ssp: one gradient.

        Args:
            worker: int32 scalar.
            number: int64 scalar, of the gradient.
            rate_factor, gradient_factor: See `StalePolicy`.
        """
        if not self._plan.layout.embeddings:
            return []
        workers = tf.reshape(tf.cast(worker, tf.int64), [1])
        step = self._variables.global_step.read_value()
        return self._applied(workers, number, step, rate_factor, gradient_factor)

    def dropped(self, worker: tf.Tensor, number: tf.Tensor) -> list[tf.Operation]:
        """Modes async and ssp: discards the rows of a gradient that is dropped; see `of_worker`."""
        if not self._plan.layout.embeddings:
            return []
        return [drop_rows(shard_name(self._variables.container, self._plan.shard), worker, number)]

    def _applied(
        self,
        workers: tf.Tensor,
        number: tf.Tensor,
        step: tf.Tensor,
        rate_factor: tf.Tensor | float = 1.0,
        gradient_factor: tf.Tensor | float = 1.0,
    ) -> list[tf.Operation]:
        plan, job = self._plan, self._plan.job
        rate = optimizers.learning_rate(job.rule, step, self._base_rate.read()) * rate_factor
        own = [job.tables[table.key].learning_rate for table in plan.layout.embeddings]
        factors = [1.0 if each is None else each / (job.rule.learning_rate or 1.0) for each in own]
        name = shard_name(self._variables.container, plan.shard)
        return [apply_rows(name, workers, number, step, rate * tf.constant(factors), gradient_factor)]
