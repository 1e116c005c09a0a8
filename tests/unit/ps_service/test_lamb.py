"""Lamb on a ps takes the norms of whole tensors, wherever buckets cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.graph_fleet import BUCKET_BYTES, TwoTensors, graph_fleet
from support.rows import first_rows

from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.layout import Layout, TensorSpec
from worker_service.frontends.interface import TrainingGraph

RATE, STEPS = 0.1, 6
SPECS = (TensorSpec("w", (20,)), TensorSpec("b", (3,)), TensorSpec("c", (9,)))
DIRECTIONS = {spec.name: np.random.default_rng(7).normal(size=spec.shape).astype(np.float32) for spec in SPECS}
"""The gradient of a tensor is x + its direction."""


class Uneven(TwoTensors):
    """Tensors with gaps between them, in buckets of 16 elements: the first one is in two."""

    parameters = SPECS

    def build(self, layout: Layout, parameters: Sequence[tf.Tensor], *_: object, **__: object) -> TrainingGraph:
        """See `FrontEnd`."""
        training = super().build(layout, [tf.concat(parameters, 0)[:32]])
        gradients = tuple(tf.constant(DIRECTIONS[spec.name]) + training.feeds[0] for spec in SPECS)
        return replace(training, gradients=gradients)


def trained_by_keras(xs: list[float], **options: Any) -> dict[str, np.ndarray]:
    variables = [keras.Variable(np.zeros(spec.shape, np.float32), name=spec.name) for spec in SPECS]
    optimizer = keras.optimizers.Lamb(RATE, **options)
    optimizer.build(variables)
    for x in xs:
        optimizer.apply([tf.constant(DIRECTIONS[spec.name] + np.float32(x)) for spec in SPECS])
    return {spec.name: variable.numpy() for spec, variable in zip(SPECS, variables, strict=True)}


@pytest.mark.parametrize(
    ("mode", "options"), first_rows([("sync", {}), ("async", {"weight_decay": 0.5})]), ids=["plain", "decay"]
)
def test_tensors_that_lie_in_several_buckets_are_trained_as_by_keras(mode: str, options: dict[str, Any]) -> None:
    optimizer = {"name": "lamb", "learning_rate": RATE, **options}
    xs = [0.3 * number - 0.7 for number in range(STEPS)]
    with graph_fleet(1, Uneven(), optimizer=optimizer, update={"mode": mode}) as fleet:
        assert fleet.layout.parameters.bucket_size * 4 == BUCKET_BYTES
        with fleet.worker(0) as worker:
            for step, x in enumerate(xs):
                pushed = worker.push(x, step)
                fleet.advance()
                pushed.result(30)
        fleet.shards[0].take_snapshot()
        content = fleet.shards[0].read_snapshot()
    found = fleet.layout.parameters.unpack(content.parameters)
    for name, expected in trained_by_keras(xs, **options).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5, err_msg=name)
    used = sum(np.count_nonzero(tensor) for tensor in found.values())
    assert np.count_nonzero(content.parameters) == used, "a gap between tensors moved"


def test_several_ps_are_refused() -> None:
    content = {"name": "sample", "program": "program:build", "optimizer": {"name": "lamb", "learning_rate": 0.1}}
    content |= {"train": {"steps": 1, "batch_size": 1}, "fleet": {"ps": 2}}
    with pytest.raises(BadJobError, match=r"fleet.ps is 2, expected 1 with optimizer lamb: it needs the norm of each"):
        parse_job(content)
