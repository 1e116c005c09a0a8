"""The optimizer of a worker on its own weights: in averaging mode from those of the last average, or in a trial."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.layout import FlatLayout
from psfleet.layout.buckets import Bucket
from psfleet.tf import optimizers
from psfleet.tf.lamb import TensorRange
from psfleet.tf.optimizer_slots import OptimizerSlots, from_words, scalar_variables, to_words
from psfleet.tf.traced_update import TracedUpdate
from worker_service.frontends.flat import elements


class VectorOptimizer:
    """The job's only optimizer on a vector of parameters in this process's graph.

    Args of the constructor:
        parameters: float32 `[layout.size]`, the variable that it changes.
        step: int64 scalar, the global step before an update.
        update: Of the program's own optimizer; None: the optimizer is psfleet's.
    """

    def __init__(
        self, job: Job, layout: FlatLayout, parameters: tf.Variable, step: tf.Tensor, update: TracedUpdate | None
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        pairs = zip(layout.offsets, layout.specs, strict=True)
        tensors = [TensorRange(offset, offset + spec.size) for offset, spec in pairs]
        rate = optimizers.learning_rate(job.rule, step)
        self._optimizer = optimizers.build(job.rule, rate, tensors, update)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Operation:
        """One update of the parameters.

        Args:
            gradients: float32 `[size]` for each parameter of the layout.
        """
        gradient = tf.concat(elements(self._layout, gradients, Bucket(0, self._layout.size)), 0)
        return self._optimizer.apply_gradients([(gradient, self._parameters)])


class LocalOptimizer(VectorOptimizer):
    """The optimizer of averaging mode, which exchanges its state with the ps; `apply` comes before the other methods.

    Args of the constructor, in addition:
        average: float32 `[layout.size]`, a variable: the parameters that the worker has pulled last.
        slots: That are exchanged with the ps.
    """

    def __init__(
        self,
        job: Job,
        layout: FlatLayout,
        parameters: tf.Variable,
        average: tf.Variable,
        step: tf.Tensor,
        update: TracedUpdate | None,
        slots: OptimizerSlots,
    ) -> None:
        super().__init__(job, layout, parameters, step, update)
        self._average = average
        self._exchanged = slots

    def fall(self) -> list[tf.Tensor]:
        """By how much the parameters fell since the last average: float32 `[size]` for each."""
        fallen = self._average.read_value() - self._parameters.read_value()
        pairs = zip(self._layout.offsets, self._layout.specs, strict=True)
        return [fallen[offset : offset + spec.size] for offset, spec in pairs]

    def slot_vectors(self) -> list[tf.Tensor]:
        """The slots in ascending order of their names: float32 `[layout.size]` each."""
        return [slot.read_value() for slot in self._slots().values()]

    def words(self) -> tf.Tensor:
        """The scalars; see `to_words`."""
        return to_words([scalar.read_value() for scalar in self._scalars().values()])

    def assigned(self, average: tf.Tensor, slots: Sequence[tf.Tensor], words: tf.Tensor) -> list[tf.Operation]:
        """Begins a round with what was pulled: the average, slot vectors and scalars."""
        scalars = from_words(words, self._exchanged.dtypes)
        pairs = [(self._average, average), *zip(self._slots().values(), slots, strict=True)]
        pairs += zip(self._scalars().values(), scalars, strict=True)
        return [variable.assign(value, read_value=False) for variable, value in pairs]

    def _slots(self) -> dict[str, tf.Variable]:
        return {name: self._optimizer.get_slot(self._parameters, name) for name in self._exchanged.slots}

    def _scalars(self) -> dict[str, tf.Variable]:
        found = scalar_variables(self._optimizer, {name: [slot] for name, slot in self._slots().items()})
        return {name: found[name] for name in self._exchanged.scalars}
