"""Builds the optimizer that a job names, with its learning rate as a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job import optimizer as schema


class AdamWOptimizer(v1.train.AdamOptimizer):
    """Adam with decoupled weight decay: each weight first loses `learning_rate * weight_decay` of itself.

    Loshchilov and Hutter 2019, algorithm 2, with the schedule's rate as the multiplier of the decay.
    """

    def __init__(self, learning_rate: tf.Tensor, weight_decay: float, **options: float) -> None:
        super().__init__(learning_rate, **options)
        self._keep = 1.0 - learning_rate * weight_decay

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """Decays the variables, then applies Adam's update; see tf.compat.v1.train.Optimizer."""
        pairs = list(grads_and_vars)
        with tf.control_dependencies([gradient for gradient, _ in pairs]):
            decays = [variable.assign(variable * self._keep, read_value=False) for _, variable in pairs]
        with tf.control_dependencies(decays):
            return super().apply_gradients(pairs, global_step, name)


def learning_rate(optimizer: schema.OptimizerBase, step: tf.Tensor) -> tf.Tensor:
    """The scheduled learning rate at a step: a float32 scalar of an int64 scalar."""
    schedule = optimizer.schedule
    at = tf.cast(step, tf.float32)
    base = tf.constant(optimizer.learning_rate, tf.float32)
    rate: tf.Tensor
    match schedule:
        case schema.Exponential():
            rate = v1.train.exponential_decay(
                base, at, float(schedule.decay_steps), schedule.decay_rate, staircase=schedule.staircase
            )
        case schema.Piecewise():
            passed = tf.reduce_sum(tf.cast(step >= tf.constant(schedule.boundaries, tf.int64), tf.int32))
            rate = base * tf.gather(tf.constant(schedule.factors, tf.float32), passed)
        case schema.Cosine():
            rate = v1.train.cosine_decay(base, at, float(schedule.decay_steps), alpha=schedule.final_factor)
        case _:
            rate = base
    if schedule.warmup_steps:
        rate *= tf.minimum(1.0, (at + 1.0) / float(schedule.warmup_steps))
    return rate


def build(optimizer: schema.OptimizerBase, rate: tf.Tensor) -> v1.train.Optimizer:
    """The optimizer of a job at a learning rate (float32 scalar)."""
    return _BUILDERS[type(optimizer)](optimizer, rate)


_BUILDERS: dict[type[schema.OptimizerBase], Callable[[Any, tf.Tensor], v1.train.Optimizer]] = {
    schema.Sgd: lambda _, rate: v1.train.GradientDescentOptimizer(rate),
    schema.Momentum: lambda o, rate: v1.train.MomentumOptimizer(rate, o.momentum, use_nesterov=o.nesterov),
    schema.Adam: lambda o, rate: v1.train.AdamOptimizer(rate, o.beta1, o.beta2, o.epsilon),
    schema.AdamW: lambda o, rate: AdamWOptimizer(rate, o.weight_decay, beta1=o.beta1, beta2=o.beta2, epsilon=o.epsilon),
    schema.Adagrad: lambda o, rate: v1.train.AdagradOptimizer(rate, o.initial_accumulator),
    schema.RmsProp: lambda o, rate: v1.train.RMSPropOptimizer(
        rate, o.decay, o.momentum, o.epsilon, centered=o.centered
    ),
    schema.Ftrl: lambda o, rate: v1.train.FtrlOptimizer(
        rate,
        o.learning_rate_power,
        o.initial_accumulator,
        l1_regularization_strength=o.l1,
        l2_regularization_strength=o.l2,
    ),
}
