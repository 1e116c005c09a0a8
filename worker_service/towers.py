"""Towers: a worker's step on several of its devices, each with a part of the batch; one gradient leaves the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.layout import Layout, TensorSpec
from worker_service.frontends.interface import FrontEnd, StepBuilder, TrainingGraph
from worker_service.frontends.table_rows import Rows


def divided(front_end: FrontEnd, index: int, worker_limit: int, devices: Sequence[str]) -> StepBuilder:
    """The steps of a worker over its towers.

    Args:
        front_end: Of the worker.
        index: Of the worker.
        worker_limit: Maximum number of workers: random numbers of a tower are those of no worker.
        devices: Of each tower; empty: the step is not divided.
    """
    return Towers(front_end, index, worker_limit, devices) if devices else front_end


class Towers:
    """The step over several towers; see `divided`.

    Each tower has the program's step with its own part of the batch, from the same parameters and state. The loss, the
    gradients and floating point state are the means over the towers, as under `tf.distribute.MirroredStrategy`; sums of
    metrics are added up. Other state and the summaries are those of the first tower.
    """

    def __init__(self, front_end: FrontEnd, index: int, worker_limit: int, devices: Sequence[str]) -> None:
        self._devices = devices
        others = [front_end.of_worker(index + at * worker_limit) for at in range(1, len(devices))]
        self._front_ends = [front_end, *others]

    def build(
        self,
        layout: Layout,
        parameters: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor],
        number: tf.Tensor | None = None,
        *,
        rows: Rows | None = None,
    ) -> TrainingGraph:
        """See `StepBuilder`; jobs with tables have no towers."""
        del rows
        towers: list[TrainingGraph] = []
        for device, front_end in zip(self._devices, self._front_ends, strict=True):
            with tf.device(device):
                # Metrics add up over the towers: their sums so far are in one of them.
                own = [
                    value if spec.is_saved or not towers else tf.zeros_like(value)
                    for spec, value in zip(layout.state.specs, state, strict=True)
                ]
                towers.append(front_end.build(layout, parameters, own, frozen, number, towers=len(self._devices)))
        with tf.device("/device:CPU:0"):
            feeds = _fed_in_parts([tower.feeds for tower in towers])
        _share(towers)
        first, *further = (
            _together(steps, layout.state.specs) for steps in zip(*(tower.each for tower in towers), strict=True)
        )
        return replace(first, feeds=feeds, further=tuple(replace(step, feeds=feeds) for step in further), shares=())


def _fed_in_parts(feeds: Sequence[Sequence[tf.Tensor]]) -> tuple[tf.Tensor, ...]:
    """Placeholders for a whole batch, whose parts come in place of those of each tower."""
    wholes: list[tf.Tensor] = []
    for parts in zip(*feeds, strict=True):
        shape = parts[0].shape
        if shape.rank is not None and shape[0] is not None:
            shape = tf.TensorShape([shape[0] * len(parts), *shape[1:]])
        wholes.append(v1.placeholder(parts[0].dtype, shape))
        for placeholder, part in zip(parts, tf.split(wholes[-1], len(parts)), strict=True):
            _substitute(placeholder, part)
    return tuple(wholes)


def _share(towers: Sequence[TrainingGraph]) -> None:
    """Gives each tower the weight of the whole batch."""
    for shares in zip(*(tower.shares for tower in towers), strict=True):
        total = tf.add_n([share.own for share in shares])
        for share in shares:
            _substitute(share.total, total)


def _substitute(placeholder: tf.Tensor, value: tf.Tensor) -> None:
    """Puts a tensor in the place of a placeholder.

    The placeholders of one tower need what the others compute, so that they have values only when all are built.
    """
    for operation in placeholder.consumers():
        for at, tensor in enumerate(operation.inputs):
            if tensor.name == placeholder.name:
                operation._update_input(at, value)


def _together(steps: Sequence[TrainingGraph], state: Sequence[TensorSpec]) -> TrainingGraph:
    """The step of one loss over all towers.

    Args:
        state: Specs of the tensors of state.
    """
    return replace(
        steps[0],
        loss=_mean([step.loss for step in steps]),
        gradients=tuple(_mean(parts) for parts in zip(*(step.gradients for step in steps), strict=True)),
        new_state=tuple(
            _joined(spec, values)
            for spec, values in zip(state, zip(*(step.new_state for step in steps), strict=True), strict=True)
        ),
        updates=tuple(update for step in steps for update in step.updates),
    )


def _joined(spec: TensorSpec, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """A tensor of state after the step, from those of the towers."""
    if not spec.is_saved:
        return tf.add_n(values)
    return _mean(values) if values[0].dtype.is_floating else values[0]


def _mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    mean: tf.Tensor = tf.add_n(values) / tf.cast(len(values), values[0].dtype)
    return mean
