"""Builds the update loop of a shard from the job: its mode, its optimizer and that of each of several losses."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.base_rate import BaseRate
from ps_service.shard_plan import ShardPlan
from ps_service.updates import AsyncUpdates, AveragingUpdates, SspUpdates, SyncUpdates, Updates
from ps_service.updates.per_loss import PerLoss
from ps_service.updates.state import state_share
from ps_service.updates.table_update import TableUpdate
from psfleet.job.optimizer import OptimizerBase
from psfleet.layout.buckets import loss_names, loss_order, loss_ranges
from psfleet.tf import ShardVariables, optimizers
from psfleet.tf.lamb import TensorRange


def updates_of(plan: ShardPlan, segments: Sequence[ShardVariables], base_rate: BaseRate) -> Updates:
    """The update loop of the job's mode, for all segments of a shard."""
    job, variables = plan.job, segments[0]

    def optimizer(rate_factor: tf.Tensor | float, number: tf.Tensor | None = None) -> v1.train.Optimizer:
        return _optimizer(plan, variables, base_rate, rate_factor, number)

    tables = TableUpdate(plan, variables, base_rate)
    if not job.update.has_quorum:
        kind = SspUpdates if job.update.mode == "ssp" and plan.shard == 0 else AsyncUpdates
        return kind(variables, optimizer, job.update.stale, state_share(job), tables)
    if job.update.mode == "averaging":
        return AveragingUpdates(variables, job.quorum, job.fleet.replicas, job.update.next_step)
    built = [(segment, _optimizer(plan, segment, base_rate, 1.0, None)) for segment in segments]
    return SyncUpdates(built, job.quorum, job.fleet.replicas, tables=tables)


def _optimizer(
    plan: ShardPlan,
    variables: ShardVariables,
    base_rate: BaseRate,
    rate_factor: tf.Tensor | float,
    number: tf.Tensor | None,
) -> v1.train.Optimizer:
    """The optimizer of the job.

    Args:
        number: Of the update, see `PerLoss`; None: the global step.
    """
    layout, rules = plan.layout.parameters, plan.job.rules

    def built(rule: OptimizerBase, loss: int) -> v1.train.Optimizer:
        rate = optimizers.learning_rate(rule, variables.global_step.read_value(), base_rate.read())
        return optimizers.build(rule, rate * rate_factor, _tensors(plan, loss), plan.update)

    if not layout.losses:
        return built(plan.job.rule, 0)
    by_name = {name: built(rules[name], loss) for loss, name in enumerate(loss_names(layout))}
    order = loss_order(layout, plan.job.train.alternate)
    number = variables.global_step.read_value() if number is None else number
    return PerLoss(by_name, variables.buckets, variables.bucket_losses, order, number)


def _tensors(plan: ShardPlan, loss: int) -> list[TensorRange]:
    """The tensors of a loss in the vector of its buckets on this ps."""
    layout = plan.layout.parameters
    low = plan.shard * layout.shard_size
    first, last = (min(max(at - low, 0), layout.shard_size) for at in loss_ranges(layout)[loss])
    pieces = [piece for piece in layout.pieces(plan.shard) if first <= piece.at < last]
    return [TensorRange(piece.at - first, piece.at - first + piece.stop - piece.start) for piece in pieces]
