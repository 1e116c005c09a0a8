"""LAMB of `keras.optimizers`: Adam whose update of each tensor has a norm in proportion to that of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1


@dataclass(frozen=True)
class TensorRange:
    """The elements of one tensor in the vector of all buckets: from `start` to `stop`."""

    start: int
    stop: int


class Lamb(v1.train.Optimizer):
    """You et al. 2020, algorithm 2, with the bias corrections of Adam and without bounds of the ratio, as Keras has it.

    The norms are those of whole tensors, so all elements of each must be on this ps; they may be in several buckets.

    Args of the constructor:
        tensors: Without overlaps, in ascending order; elements between them are not updated. None: each variable is
            one tensor.
    """

    def __init__(
        self, rate: tf.Tensor, beta1: float, beta2: float, epsilon: float, tensors: Sequence[TensorRange] | None = None
    ) -> None:
        super().__init__(use_locking=False, name="Lamb")
        self._rate = rate
        self._betas = {"beta1_power": beta1, "beta2_power": beta2}
        self._epsilon = epsilon
        self._tensors = tensors
        self._updates: list[tuple[tf.Variable, tf.Tensor]] = []

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for name, beta in self._betas.items():
            self._create_non_slot_variable(initial_value=beta, name=name, colocate_with=var_list[0])
        for variable in var_list:
            for slot in ("momentum", "velocity"):
                self._zeros_slot(variable, slot, self._name)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        """Updates the moments; the weights follow in `_finish`, when those of all buckets are known."""
        beta1, beta2 = self._betas.values()
        corrections = [1.0 - power.read_value() for power in self._powers()]
        momentum = _moved(self.get_slot(handle, "momentum"), grad, beta1)
        velocity = _moved(self.get_slot(handle, "velocity"), tf.square(grad), beta2)
        update = momentum / corrections[0] / (tf.sqrt(velocity / corrections[1]) + self._epsilon)
        self._updates.append((handle, update))
        return update.op

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> tf.Operation:
        updates, self._updates = self._updates, []
        with tf.control_dependencies(update_ops):
            weights = [variable.read_value() for variable, _ in updates]
            scaled = self._scaled(weights, [update for _, update in updates])
            changed = [
                variable.assign_sub(self._rate * update, read_value=False)
                for (variable, _), update in zip(updates, scaled, strict=True)
            ]
        with tf.control_dependencies(changed):
            powers = [
                power.assign(power.read_value() * beta, read_value=False)
                for power, beta in zip(self._powers(), self._betas.values(), strict=True)
            ]
        return tf.group(*changed, *powers, name=name_scope)

    def _scaled(self, weights: Sequence[tf.Tensor], updates: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The updates of the buckets, multiplied by the ratio of the norms of each tensor; zeros between tensors."""
        sizes = [int(weight.shape[0]) for weight in weights]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        tensors = self._tensors
        if tensors is None:
            tensors = [TensorRange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        parts: list[list[tf.Tensor]] = [[] for _ in sizes]
        ends = list(starts)
        for tensor in tensors:
            pieces = [
                (index, max(tensor.start, start) - start, min(tensor.stop, start + size) - start)
                for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
                if tensor.start < start + size and tensor.stop > start
            ]
            ratio = _ratio(
                [weights[index][low:high] for index, low, high in pieces],
                [updates[index][low:high] for index, low, high in pieces],
            )
            for index, low, high in pieces:
                gap = starts[index] + low - ends[index]
                parts[index] += [tf.zeros([gap])] * bool(gap) + [ratio * updates[index][low:high]]
                ends[index] = starts[index] + high
        rests = [start + size - end for start, size, end in zip(starts, sizes, ends, strict=True)]
        return [tf.concat([*part, tf.zeros([rest])], 0) for part, rest in zip(parts, rests, strict=True)]

    def _powers(self) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        return [self._get_non_slot_variable(name, graph=graph) for name in self._betas]


def _moved(slot: tf.Variable, value: tf.Tensor, beta: float) -> tf.Tensor:
    """The slot, after it has gone 1 - beta of the way to a value."""
    return tf.convert_to_tensor(slot.assign_add((value - slot.read_value()) * (1.0 - beta)))


def _ratio(weights: Sequence[tf.Tensor], updates: Sequence[tf.Tensor]) -> tf.Tensor:
    """Norm of a tensor's weights / norm of its update; 1 if one of them is zero."""
    of_weights, of_updates = (
        tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(part)) for part in parts])) for parts in (weights, updates)
    )
    return tf.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1.0)
