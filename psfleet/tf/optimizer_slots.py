"""Slots and scalars of an optimizer, which a ps and the workers exchange in averaging mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.tf import optimizers
from psfleet.tf.own_session import unoptimized
from psfleet.tf.traced_update import TracedUpdate


@dataclass(frozen=True)
class OptimizerSlots:
    """The slots and scalars of an optimizer, by name in ascending order.

    Attributes:
        slots: Initial value of all elements of each slot, a float32 vector like that of the parameters.
        scalars: Initial value of each scalar, float32 or of an integer type. Scalars depend on the number of updates
            alone.
    """

    slots: Mapping[str, np.float32] = field(default_factory=dict)
    scalars: Mapping[str, np.generic] = field(default_factory=dict)

    @property
    def dtypes(self) -> list[tf.DType]:
        """The types of the scalars."""
        return [tf.dtypes.as_dtype(value.dtype) for value in self.scalars.values()]


def exchanged_slots(job: Job, update: TracedUpdate | None) -> OptimizerSlots:
    """The slots that a job's workers exchange with the ps: those of its optimizer if averaging mode averages them.

    Args:
        update: Of the program's own optimizer; None: the optimizer is psfleet's.
    """
    if job.update.mode != "averaging" or not job.update.average_slots:
        return OptimizerSlots()
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        variable = v1.get_variable("element", [1], use_resource=True)
        optimizer = optimizers.build(job.rule, tf.constant(1.0), update=update)
        optimizer.apply_gradients([(tf.zeros([1]), variable)])
        slots = {name: optimizer.get_slot(variable, name) for name in sorted(optimizer.get_slot_names())}
        scalars = scalar_variables(optimizer, {name: [slot] for name, slot in slots.items()})
        initializer = v1.global_variables_initializer()
    config = unoptimized()
    config.device_count["GPU"] = 0
    with v1.Session(graph=graph, config=config) as session:
        session.run(initializer)
        found, numbers = session.run((slots, dict(sorted(scalars.items()))))
    return OptimizerSlots({name: value[0] for name, value in found.items()}, numbers)


def scalar_variables(
    optimizer: v1.train.Optimizer, slots: Mapping[str, Sequence[tf.Variable]]
) -> dict[str, tf.Variable]:
    """The optimizer's variables other than slots, such as Adam's powers of beta, by name."""
    of_slots = {variable.name for parts in slots.values() for variable in parts}
    others = [variable for variable in optimizer.variables() if variable.name not in of_slots]
    return {variable.name.rpartition("/")[2].removesuffix(":0"): variable for variable in others}


def to_words(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Scalars as int64 `[len(scalars)]`, with the bits of those that are no integers."""
    bits = [tf.bitcast(scalar, tf.int32) if scalar.dtype == tf.float32 else scalar for scalar in scalars]
    return tf.stack([tf.cast(each, tf.int64) for each in bits]) if bits else tf.zeros([0], tf.int64)


def from_words(words: tf.Tensor, dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """The inverse of `to_words`."""
    return [
        tf.bitcast(tf.cast(words[at], tf.int32), tf.float32) if dtype == tf.float32 else tf.cast(words[at], dtype)
        for at, dtype in enumerate(dtypes)
    ]
