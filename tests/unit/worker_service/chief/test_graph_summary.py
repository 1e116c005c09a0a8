"""TensorBoard gets the training graph of the chief: once, without large constants, and never a huge one."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.chief_samples import sample_context, sample_job, sample_storage

from psfleet.layout import Layout
from psfleet.run_folder import OF_ONE_ATTEMPT, clear
from worker_service.chief import graph_summary
from worker_service.chief.recorder import Recorder

SIZE = 4096


def sample() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.add(tf.constant(np.arange(SIZE, dtype=np.float32), name="large"), tf.constant(1.0, name="small"), name="sum")
    return graph


def test_large_constants_lose_their_values_and_small_ones_keep_them() -> None:
    found = graph_summary.graph_summary(sample())
    assert found is not None
    nodes = {node.name: node for node in found.node}
    assert set(nodes) == {"large", "small", "sum"}
    assert "value" not in nodes["large"].attr
    assert "value" in nodes["small"].attr
    assert found.ByteSize() < SIZE


def test_a_huge_graph_is_not_written_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graph_summary, "MAX_GRAPH_BYTES", 10)
    with caplog.at_level(logging.INFO, "psfleet.chief"):
        assert graph_summary.graph_summary(sample()) is None
    assert "expected at most 10" in caplog.text


def train(out: Path, asked: bool) -> None:
    """A chief process makes three steps."""
    job = sample_job(summaries={"every_steps": 1, "graph": asked})
    layout = Layout.plan([], [], [], 2, 4096)
    recorder = Recorder(out, job, layout, None, sample_storage(sample_context(out, job=job)))
    session: Any = SimpleNamespace(
        summaries=lambda batch: None, gradient_norm=lambda: None, measure_norm=bool, graph=sample()
    )
    batch: Any = None
    recorder.start(0)
    for step in (1, 2, 3):
        recorder.step(session, batch, step, loss=0.5, secs=0.1)
    recorder.close()


def graphs(out: Path) -> list[tf.compat.v1.GraphDef]:
    """Those in TensorBoard's files."""
    return [
        tf.compat.v1.GraphDef.FromString(event.graph_def)
        for path in (out / "tensorboard").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if event.graph_def
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_the_graph_is_in_tensorboards_file_once_if_the_job_asks_for_it(tmp_path: Path, asked: bool) -> None:
    train(tmp_path, asked)
    found = graphs(tmp_path)
    assert len(found) == asked
    for graph_def in found:
        assert {node.name for node in graph_def.node} == {"large", "small", "sum"}


def test_the_next_chief_of_a_run_does_not_write_it_again_and_the_next_start_of_the_run_does(tmp_path: Path) -> None:
    """The program can have changed by then."""
    for _ in range(2):
        train(tmp_path, asked=True)
        assert len(graphs(tmp_path)) == 1
    clear(tmp_path, OF_ONE_ATTEMPT)
    train(tmp_path, asked=True)
    assert len(graphs(tmp_path)) == 2
