"""The optimizer of a training program, from the graph of its update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf.traced_update import TracedUpdate, Values


class ProgramOptimizer(v1.train.Optimizer):
    """Applies a traced update to each bucket.

    Scalars are common to all buckets. They change after the last of them, by what the update of any bucket makes of
    them: that depends on scalars alone.

    Args of the constructor:
        rate: Learning rate, float32 scalar.
    """

    def __init__(self, rate: tf.Tensor, update: TracedUpdate) -> None:
        super().__init__(use_locking=False, name="ProgramOptimizer")
        self._rate = rate
        self._update = update
        self._scalars_after: dict[str, tf.Tensor] = {}

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for name, scalar in self._update.scalars.items():
            initial = np.dtype(scalar.dtype).type(scalar.initial)
            self._create_non_slot_variable(initial_value=initial, name=name, colocate_with=var_list[0])
        for variable in var_list:
            for name, value in self._update.slots.items():
                initializer = tf.constant_initializer(value)
                self._get_or_make_slot_with_initializer(
                    variable, initializer, variable.shape, tf.float32, name, self._name
                )

    def _resource_apply_dense(self, grad: tf.Tensor, handle: tf.Variable) -> tf.Operation:
        slots = {name: self.get_slot(handle, name) for name in self._update.slots}
        before = Values(
            parameters=handle.read_value(),
            slots={name: slot.read_value() for name, slot in slots.items()},
            scalars={name: scalar.read_value() for name, scalar in self._scalar_variables().items()},
        )
        after = self._update.apply(grad, self._rate, before)
        self._scalars_after = dict(after.scalars)
        # All from the values before the update: no read may follow an assignment.
        with tf.control_dependencies([*after.by_node().values()]):
            stored = [slots[name].assign(value, read_value=False) for name, value in after.slots.items()]
            return tf.group(*stored, handle.assign(after.parameters, read_value=False))

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> tf.Operation:
        with tf.control_dependencies(update_ops):
            variables = self._scalar_variables()
            changed = [variables[name].assign(value, read_value=False) for name, value in self._scalars_after.items()]
        return tf.group(*update_ops, *changed, name=name_scope)

    def _scalar_variables(self) -> dict[str, tf.Variable]:
        graph = tf.compat.v1.get_default_graph()
        return {name: self._get_non_slot_variable(name, graph=graph) for name in self._update.scalars}
