"""Builds the optimizer that a job names, with its learning rate as a function of the step.

The updates are those of `keras.optimizers`; classes of this module replace those of tf.compat.v1.train that differ. No
optimizer may make NaN of a weight whose gradient is always zero, as in the gaps between tensors, or always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import BadJobError
from psfleet.job import optimizer as schema
from psfleet.tf.lamb import Lamb, TensorRange
from psfleet.tf.program_optimizer import ProgramOptimizer
from psfleet.tf.traced_update import TracedUpdate


class Momentum(v1.train.Optimizer):
    """Momentum of `keras.optimizers.SGD`: `velocity = momentum * velocity - rate * gradient`; `weights += velocity`.

    tf.compat.v1.train.MomentumOptimizer multiplies the velocity by the rate of the current step instead, which differs
    where the rate changes. The slot has another name than in that class, whose checkpoints have another meaning.
    """

    def __init__(self, rate: tf.Tensor, momentum: float, nesterov: bool) -> None:
        super().__init__(use_locking=False, name="Momentum")
        self._rate = rate
        self._momentum = momentum
        self._nesterov = nesterov

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "velocity", self._name)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=handle.handle,
            accum=self.get_slot(handle, "velocity").handle,
            lr=self._rate,
            grad=grad,
            momentum=self._momentum,
            use_nesterov=self._nesterov,
        )


class Lion(v1.train.Optimizer):
    """Lion of `keras.optimizers`: each weight moves by the rate, in the direction of a moving average's sign."""

    def __init__(self, rate: tf.Tensor, beta1: float, beta2: float) -> None:
        super().__init__(use_locking=False, name="Lion")
        self._rate = rate
        self._betas = beta1, beta2

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "momentum", self._name)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        slot, (beta1, beta2) = self.get_slot(handle, "momentum"), self._betas
        momentum = slot.read_value()
        step = self._rate * tf.sign(momentum * beta1 + grad * (1.0 - beta1))
        after = momentum * beta2 + grad * (1.0 - beta2)
        # Both from the momentum before: it is read once.
        return tf.group(slot.assign(after, read_value=False), handle.assign_sub(step, read_value=False))


class RmsProp(v1.train.RMSPropOptimizer):
    """RMSProp whose mean of squared gradients starts at zero, as in Keras; TensorFlow 1 starts at one.

    The slots are those of the base class, and their updates are the same.
    """

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for variable in var_list:
            for slot in ("rms", "mg", "momentum") if self._centered else ("rms", "momentum"):
                self._zeros_slot(variable, slot, self._name)

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        return self._apply_centered(grad, var) if self._centered else super()._resource_apply_dense(grad, var)

    def _apply_centered(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        """The kernel's formula with a variance that is never below zero.

        The variance of equal gradients is a rounding error, which can be below -epsilon: the root would be NaN, as it
        is in Keras.
        """
        slots = [self.get_slot(var, slot) for slot in ("rms", "mg", "momentum")]
        rms, mean, move = (slot.read_value() for slot in slots)
        rms += (tf.square(grad) - rms) * (1.0 - self._decay)
        mean += (grad - mean) * (1.0 - self._decay)
        variance = tf.maximum(rms - tf.square(mean), 0.0)
        move = move * self._momentum + self._learning_rate * grad * tf.math.rsqrt(variance + self._epsilon)
        stored = [slot.assign(value, read_value=False) for slot, value in zip(slots, (rms, mean, move), strict=True)]
        return tf.group(*stored, var.assign_sub(move, read_value=False))


def learning_rate(optimizer: schema.OptimizerBase, step: tf.Tensor, base: tf.Tensor | None = None) -> tf.Tensor:
    """The scheduled learning rate at a step: a float32 scalar of an int64 scalar.

    Args:
        base: float32 scalar that replaces `learning_rate` of the job: with a plateau schedule, as reduced so far.

    Raises:
        BadJobError: The optimizer is the program's, and the chief has not set its learning rate.
    """
    if optimizer.learning_rate is None:
        raise BadJobError("optimizer.learning_rate is null, expected that of the program's optimizer")
    schedule = optimizer.schedule
    at = tf.cast(step, tf.float32)
    base = tf.constant(optimizer.learning_rate, tf.float32) if base is None else base
    rate: tf.Tensor
    match schedule:
        case schema.Exponential():
            rate = v1.train.exponential_decay(
                base, at, float(schedule.decay_steps), schedule.decay_rate, staircase=schedule.staircase
            )
        case schema.Piecewise():
            passed = tf.reduce_sum(tf.cast(step > tf.constant(schedule.boundaries, tf.int64), tf.int32))
            rate = base * tf.gather(tf.constant(schedule.factors, tf.float32), passed)
        case schema.Cosine():
            rate = v1.train.cosine_decay(base, at, float(schedule.decay_steps), alpha=schedule.final_factor)
        case _:
            rate = base
    if schedule.warmup_steps:
        rate *= tf.minimum(1.0, (at + 1.0) / float(schedule.warmup_steps))
    return rate


def build(
    optimizer: schema.OptimizerBase,
    rate: tf.Tensor,
    tensors: Sequence[TensorRange] | None = None,
    update: TracedUpdate | None = None,
) -> v1.train.Optimizer:
    """The optimizer of a job at a learning rate (float32 scalar).

    Args:
        tensors: The parameters in the vector of all variables that are trained; None: each variable is one. Only Lamb
            distinguishes tensors.
        update: Of the program's optimizer; None if it is one of psfleet's.
    """
    built: v1.train.Optimizer
    if update is not None:
        built = ProgramOptimizer(rate, update)
    elif isinstance(optimizer, schema.Lamb):
        built = Lamb(rate, optimizer.beta1, optimizer.beta2, optimizer.epsilon, tensors)
    else:
        built = _BUILDERS[type(optimizer)](optimizer, rate)
    if optimizer.weight_decay:
        _decay(built, rate * optimizer.weight_decay)
    return built


def _decay(optimizer: v1.train.Optimizer, lost: tf.Tensor) -> None:
    """Makes an optimizer subtract a fraction (float32 scalar) of each weight from it before each update.

    This is weight decay as all optimizers of Keras have it: decoupled (Loshchilov and Hutter 2019, algorithm 2), with
    the scheduled rate as its multiplier.
    """
    update = optimizer._resource_apply_dense

    def decayed_update(grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        with tf.control_dependencies([grad]):
            # 1 - rate * weight_decay would be rounded to a multiple of 6e-8.
            decayed = var.assign_sub(var.read_value() * lost, read_value=False)
        with tf.control_dependencies([decayed]):
            return update(grad, var)

    optimizer._resource_apply_dense = decayed_update


def _adagrad(options: schema.Adagrad, rate: tf.Tensor) -> v1.train.Optimizer:
    """Keras adds epsilon to the sum of squares at each step; a sum that starts with epsilon is the same."""
    return v1.train.AdagradOptimizer(rate, options.initial_accumulator + options.epsilon)


_BUILDERS: dict[type[schema.OptimizerBase], Callable[[Any, tf.Tensor], v1.train.Optimizer]] = {
    schema.Sgd: lambda _, rate: v1.train.GradientDescentOptimizer(rate),
    schema.Momentum: lambda o, rate: Momentum(rate, o.momentum, o.nesterov),
    schema.Adam: lambda o, rate: v1.train.AdamOptimizer(rate, o.beta1, o.beta2, o.epsilon),
    schema.AdamW: lambda o, rate: v1.train.AdamOptimizer(rate, o.beta1, o.beta2, o.epsilon),
    schema.Lion: lambda o, rate: Lion(rate, o.beta1, o.beta2),
    schema.Adagrad: _adagrad,
    schema.RmsProp: lambda o, rate: RmsProp(rate, o.decay, o.momentum, o.epsilon, centered=o.centered),
    schema.Ftrl: lambda o, rate: v1.train.FtrlOptimizer(
        rate,
        o.learning_rate_power,
        o.initial_accumulator,
        l1_regularization_strength=o.l1,
        l2_regularization_strength=o.l2,
    ),
}
