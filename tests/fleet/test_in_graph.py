"""One client, worker 0, drives the replicas on all workers: counts, faults, and errors."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_fleet import START_SECS, Fleet, training

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors

IN_GRAPH = {"replication": "in_graph"}
STEP_SECS = 5.0
RANDOM_PROGRAM = """\
import keras
import numpy as np
import tensorflow as tf
import psfleet

def build():
    return psfleet.KerasProgram(model=model, loss="mse", train=train)

def model():
    layers = keras.layers
    return keras.Sequential([
        keras.Input((6,)), layers.Dense(16, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1),
    ])

def train(shard_index, num_shards):
    def examples():
        for at in range(shard_index, 120, num_shards):
            x = np.random.default_rng(at).normal(size=6).astype(np.float32)
            yield x, x[:1] - x[1:2]
    signature = tf.TensorSpec([6], tf.float32), tf.TensorSpec([1], tf.float32)
    return tf.data.Dataset.from_generator(examples, output_signature=signature)
"""
"""Random layers, a moving average, and a data set that no other process can have."""


def used(fleet: Fleet) -> dict[str, int]:
    """By worker, its gradients that were used."""
    return {index: gradients.used for index, gradients in fleet.report().gradients.per_worker.items()}


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_random_layers_shuffles_and_accumulated_batches_are_those_of_replicas_between_graphs(tmp_path: Path) -> None:
    (tmp_path / "random_program.py").write_text(RANDOM_PROGRAM)
    job: dict[str, Any] = {
        "name": "random",
        "program": "random_program:build",
        "fleet": {"ps": 2, "workers": 3},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "train": {"steps": 12, "batch_size": 5, "accumulate": 2, "shuffle": 20},
        "device": {"intra_op_threads": 1},
    }
    found = []
    for replication in ("between_graph", "in_graph"):
        out = tmp_path / replication
        report = psfleet.train({**job, "update": {"replication": replication}}, out=out, program_folder=tmp_path)
        assert (report.status, report.gradients.used, report.gradients.dropped) == ("done", 36, 0)
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        found.append(read_tensors(newest))
    between, in_graph = found
    assert between.keys() == in_graph.keys()
    for name, value in between.items():
        np.testing.assert_allclose(in_graph[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.extended
def test_in_async_mode_each_replica_makes_updates_of_its_own_and_waits_for_no_other(tmp_path: Path) -> None:
    with training(tmp_path, update={"mode": "async", **IN_GRAPH}, train={"steps": 200}, fleet={"ps": 2}) as fleet:
        fleet.wait_for_step(20)
        fleet.gates.hold(1)
        fleet.wait_for_step(fleet.step() + 30)
        fleet.gates.release(1)
        fleet.gates.hurry()
        gradients = fleet.done().gradients
    assert gradients.pushed == gradients.used + gradients.dropped
    assert gradients.used == fleet.steps
    by_worker = used(fleet)
    assert sum(by_worker.values()) == fleet.steps
    assert min(by_worker.values()) > 10
    assert not fleet.entries("lost_peer")
    late = [entry["message"] for entry in fleet.log() if "to leave the last step" in entry["message"]]
    assert not late, "the chief has waited for a worker that lends its device"


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_is_waited_for_and_a_killed_chief_trains_on_with_the_same_workers(
    mode: str, tmp_path: Path
) -> None:
    update: dict[str, Any] = {"mode": mode, **IN_GRAPH}
    with training(tmp_path, update=update, train={"steps": 120}, checkpoint={"every_steps": 20}) as fleet:
        fleet.wait_for_step(10)
        for index, role in ((1, "worker"), (0, "chief")):
            fleet.kill("worker", index)
            fleet.wait_for(partial(fleet.has_restarted, role), START_SECS, f"the {role} to join again")
            fleet.wait_for_step(fleet.step() + 10)
        fleet.gates.hurry()
        report = fleet.done()
        assert report.generation == 1
        assert [(event.role, event.index, event.steps_lost) for event in report.events] == [
            ("worker", 1, 0),
            ("chief", 0, 0),
        ]
    if mode == "sync":
        assert used(fleet) == {"0": fleet.steps, "1": fleet.steps}


@pytest.mark.extended
def test_a_worker_that_is_frozen_ends_the_step_at_its_deadline_and_is_waited_for(tmp_path: Path) -> None:
    def awaits_worker() -> bool:
        return any("there is no worker 1" in entry["message"] for entry in fleet.entries("lending"))

    sections: dict[str, Any] = {"train": {"steps": 60}, "deadlines": {"step_secs": STEP_SECS}}
    with training(tmp_path, update=IN_GRAPH, **sections) as fleet:
        fleet.wait_for_step(10)
        pid = fleet.pid("worker", 1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            fleet.wait_for(awaits_worker, START_SECS, "the chief to miss the worker")
        finally:
            os.kill(pid, signal.SIGCONT)
        fleet.wait_for_step(fleet.step() + 10)
        fleet.gates.hurry()
        assert fleet.done().generation == 1
    assert [entry["message"].partition("DeadlineExceeded")[1] for entry in fleet.entries("lost_peer")[:1]] == [
        "DeadlineExceeded"
    ]
    assert used(fleet) == {"0": fleet.steps, "1": fleet.steps}


@pytest.mark.extended
def test_a_run_that_was_stopped_trains_on_between_graphs(tmp_path: Path) -> None:
    steps = {"steps": 100}
    with training(tmp_path, update=IN_GRAPH, train=steps) as fleet:
        fleet.wait_for_step(10)
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end() == 128 + signal.SIGINT, fleet.tails()
        saved = fleet.checkpoint().step
        assert saved >= 10
    with training(tmp_path, train=steps) as fleet:
        fleet.gates.hurry()
        fleet.done()
    assert used(fleet) == {"0": 100 - saved, "1": 100 - saved}
