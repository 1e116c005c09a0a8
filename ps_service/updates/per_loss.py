"""Several losses: each update applies the optimizer of its loss, to the parameters of that loss only."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.interface import slot_values
from psfleet.tf.optimizer_slots import scalar_variables


@dataclass(frozen=True)
class OptimizerVariables:
    """The variables that an optimizer has made.

    Attributes:
        slots: By name, one for each bucket.
        scalars: All others of which checkpoints have the values, by name.
        stand_ins: Those that no checkpoint holds; see `PerLoss`.
    """

    slots: dict[str, list[tf.Variable]]
    scalars: dict[str, tf.Variable]
    stand_ins: list[tf.Variable]

    @property
    def all(self) -> list[tf.Variable]:
        """All of them, which must be initialized."""
        return [*itertools.chain(*self.slots.values()), *self.scalars.values(), *self.stand_ins]


def variables_of(optimizer: v1.train.Optimizer, buckets: Sequence[tf.Variable]) -> OptimizerVariables:
    """The variables of an optimizer, or of those of several losses, which has been applied to buckets."""
    slots = slot_values(optimizer, buckets)
    if isinstance(optimizer, PerLoss):
        return OptimizerVariables(slots, optimizer.scalars(), optimizer.stand_ins())
    return OptimizerVariables(slots, scalar_variables(optimizer, slots), [])


class PerLoss(v1.train.Optimizer):
    """An optimizer for each loss, of which an update applies one.

    The others are in branches that do not run: their weights, slots and scalars keep their bits.

    Every ps has the same slots and scalars, so that a checkpoint can be restored by any number of ps. A slot that only
    some of the optimizers have exists for the parameters of all, and stays zero for the others. An optimizer without
    parameters on this ps is applied to a variable of one element instead, which no checkpoint holds.

    Args of the constructor:
        optimizers: By the names of their losses, in the order of the losses.
        buckets: All parameters, in the order in which `apply_gradients` gets them.
        losses: The index of each bucket's loss.
        order: The losses of consecutive updates, by index, which begin anew after the last.
        number: int64 scalar, the number of the update: in sync mode the global step before it, else that of the
            gradient.
    """

    def __init__(
        self,
        optimizers: Mapping[str, v1.train.Optimizer],
        buckets: Sequence[tf.Variable],
        losses: Sequence[int],
        order: Sequence[int],
        number: tf.Tensor,
    ) -> None:
        super().__init__(use_locking=False, name="PerLoss")
        self._optimizers = dict(optimizers)
        self._losses = {id(bucket): loss for bucket, loss in zip(buckets, losses, strict=True)}
        self._buckets = list(buckets)
        self._order = list(order)
        self._number = number
        self._stand_ins: list[tf.Variable] = []

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """See tf.compat.v1.train.Optimizer. Gradients of other losses than that of the update are not read."""
        pairs = list(grads_and_vars)
        current = tf.gather(tf.constant(self._order), self._number % len(self._order))
        applied = []
        for loss, (own_name, optimizer) in enumerate(self._optimizers.items()):
            own = [pair for pair in pairs if self._losses[id(pair[1])] == loss]
            with tf.name_scope(own_name):
                applied.append(self._applied(optimizer, own or [self._stand_in(own_name)], tf.equal(current, loss)))
        for slot, bucket in itertools.product(self.get_slot_names(), self._buckets):
            if self._own_slot(bucket, slot) is None:
                self._zeros_slot(bucket, slot, self._name)
        with tf.control_dependencies(applied):
            return global_step.assign_add(tf.constant(1, tf.int64), read_value=False)

    @staticmethod
    def _applied(optimizer: v1.train.Optimizer, pairs: Sequence[Any], is_current: tf.Tensor) -> tf.Tensor:
        def apply() -> tf.Tensor:
            with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
                return tf.constant(True)

        return tf.cond(is_current, apply, lambda: tf.constant(False))

    def _stand_in(self, name: str) -> tuple[tf.Tensor, tf.Variable]:
        """A gradient and a variable for a loss without parameters on this ps."""
        initial = v1.zeros_initializer()
        variable = v1.get_variable(f"stand_in/{name}", [1], initializer=initial, trainable=False, use_resource=True)
        self._stand_ins.append(variable)
        return tf.zeros([1]), variable

    def stand_ins(self) -> list[tf.Variable]:
        """The variables of one element, with their slots."""
        pairs = itertools.product(self._optimizers.values(), self._stand_ins)
        slots = [optimizer.get_slot(each, name) for optimizer, each in pairs for name in optimizer.get_slot_names()]
        return [*self._stand_ins, *[slot for slot in slots if slot is not None]]

    def get_slot_names(self) -> list[str]:
        """The slots of all optimizers."""
        return sorted({name for optimizer in self._optimizers.values() for name in optimizer.get_slot_names()})

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable:
        """A slot of a bucket: of the optimizer of its loss, or one that stays zero."""
        slot = self._own_slot(var, name)
        return super().get_slot(var, name) if slot is None else slot

    def scalars(self) -> dict[str, tf.Variable]:
        """The optimizers' variables other than slots, by the name of the loss and their own."""
        found: dict[str, tf.Variable] = {}
        for name, optimizer in self._optimizers.items():
            slots = {slot: self._slots_of(optimizer, slot) for slot in optimizer.get_slot_names()}
            own = scalar_variables(optimizer, slots)
            found |= {f"{name}.{scalar}": variable for scalar, variable in own.items()}
        return found

    def _own_slot(self, bucket: tf.Variable, name: str) -> tf.Variable | None:
        optimizer = list(self._optimizers.values())[self._losses[id(bucket)]]
        return optimizer.get_slot(bucket, name)

    def _slots_of(self, optimizer: v1.train.Optimizer, name: str) -> list[tf.Variable]:
        found = [optimizer.get_slot(variable, name) for variable in (*self._buckets, *self._stand_ins)]
        return [slot for slot in found if slot is not None]
