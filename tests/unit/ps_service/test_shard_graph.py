"""A shard's graph restores what a checkpoint holds, in a session of this process, and keeps gaps at initial values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ps_service.shard_graph import ShardGraph
from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import parse_job
from psfleet.layout import Layout, TensorSpec

LAYOUT = Layout.plan([TensorSpec("w", (3,)), TensorSpec("b", (2,))], [], [], num_ps=1, bucket_bytes=4096)
SIZE = LAYOUT.parameters.shard_size
IN_USE = np.arange(SIZE) % 16 < np.where(np.arange(SIZE) < 16, 3, 2)
STEP = 5


def content_of(slots: tuple[str, ...], scalars: tuple[str, ...] = ()) -> ShardContent:
    """Each slot holds 2 in every tensor, and zeros in the gaps, as after reading; each scalar holds 0.25."""
    vector = np.where(IN_USE, 2, 0).astype(np.float32)
    none = np.zeros(0, np.uint8)
    return ShardContent(vector, dict.fromkeys(slots, vector), {name: np.float32(0.25) for name in scalars}, none, none)


@contextmanager
def restored(optimizer: dict[str, Any], content: ShardContent) -> Iterator[ShardContent]:
    """What a shard holds after it has restored the content."""
    job = parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"learning_rate": 0.1, **optimizer},
            "train": {"steps": 10, "batch_size": 4},
        }
    )
    graph = ShardGraph("", ShardPlan("run", 1, 0, job, LAYOUT, Path()), STEP, content)
    try:
        graph.take_snapshot()
        yield graph.read_snapshot()
    finally:
        graph.close()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the ps logged; TensorFlow logs deprecations of its own classes."""
    return [record.getMessage() for record in caplog.records if record.name == "psfleet.ps"]


@pytest.mark.parametrize(
    ("optimizer", "slots", "scalars"),
    [
        ({"name": "sgd"}, (), ()),
        ({"name": "momentum"}, ("velocity",), ()),
        ({"name": "adam"}, ("m", "v"), ("beta1_power", "beta2_power")),
        ({"name": "adamw"}, ("m", "v"), ("beta1_power", "beta2_power")),
        ({"name": "adagrad"}, ("accumulator",), ()),
        ({"name": "rmsprop"}, ("rms", "momentum"), ()),
        ({"name": "rmsprop", "centered": True}, ("rms", "mg", "momentum"), ()),
        ({"name": "ftrl"}, ("accum", "linear"), ()),
        ({"name": "lion"}, ("momentum",), ()),
        ({"name": "lamb"}, ("momentum", "velocity"), ("beta1_power", "beta2_power")),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_an_optimizer_continues_from_its_own_state(
    optimizer: dict[str, Any], slots: tuple[str, ...], scalars: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with restored(optimizer, content_of(slots, scalars)) as held:
        assert held.slots.keys() == set(slots)
        assert held.scalars == dict.fromkeys(scalars, np.float32(0.25))
        for name, vector in held.slots.items():
            np.testing.assert_array_equal(vector[IN_USE], 2.0, err_msg=name)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("optimizer", "slots", "message"),
    [
        ({"name": "momentum"}, ("momentum",), "the checkpoint has momentum, expected velocity"),
        (
            {"name": "rmsprop", "centered": True},
            ("rms", "momentum"),
            "the checkpoint has momentum, rms, expected mg, momentum, rms",
        ),
        ({"name": "adam"}, ("m", "v"), "the checkpoint has m, v, expected beta1_power, beta2_power, m, v"),
    ],
    ids=["momentum of TensorFlow 1", "centered", "no scalars"],
)
def test_an_optimizer_with_other_slots_than_the_checkpoint_starts_anew_and_says_so(
    optimizer: dict[str, Any], slots: tuple[str, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "psfleet.ps"), restored(optimizer, content_of(slots)) as held:
        np.testing.assert_array_equal(held.parameters[IN_USE], 2.0)
        assert held.slots
        assert not any(vector.any() for vector in held.slots.values())
    assert warnings_of(caplog) == [f"optimizer {optimizer['name']} starts without state: {message}"]


def test_the_first_checkpoint_has_no_state_of_the_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    with restored({"name": "adagrad"}, content_of(())) as held:
        np.testing.assert_allclose(held.slots["accumulator"], 0.1 + 1e-7)
    assert warnings_of(caplog) == []


def test_gaps_between_tensors_keep_the_initial_values_of_slots() -> None:
    with restored({"name": "adagrad"}, content_of(("accumulator",))) as held:
        np.testing.assert_allclose(held.slots["accumulator"], np.where(IN_USE, 2.0, 0.1 + 1e-7))


def test_no_call_adds_an_operation() -> None:
    job = parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"name": "adam", "learning_rate": 0.1},
            "train": {"steps": 1000, "batch_size": 4},
        }
    )
    graph = ShardGraph("", ShardPlan("run", 1, 0, job, LAYOUT, Path()), STEP, content_of(()))
    try:
        before = len(graph._graph.get_operations())
        for step in range(100, 150):
            graph.take_snapshot()
            graph.read_snapshot()
            assert graph.set_final_step(step)
            assert graph.raise_final_step(step + 1)
            graph.counters()
        assert len(graph._graph.get_operations()) == before
        assert graph._graph.finalized
    finally:
        graph.close()


def test_a_shard_that_cannot_be_restored_drops_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ps of a standing fleet would keep them for as long as it lives."""
    closed: list[ShardGraph] = []
    close = ShardGraph.close
    monkeypatch.setattr(ShardGraph, "close", lambda graph: closed.append(graph) or close(graph))
    with (
        pytest.raises(ValueError, match="Cannot feed value of shape"),
        restored({"name": "sgd"}, replace(content_of(()), state=np.zeros(3, np.uint8))),
    ):
        pass
    [graph] = closed
    with pytest.raises(RuntimeError, match="closed"):
        graph.counters()
