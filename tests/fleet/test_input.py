"""The `input` section in a fleet: weights do not depend on where examples are read, nor on where a run is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("launches_forked")

STEPS = 16
PROGRAM = """\
import tensorflow as tf
import psfleet

def loss(batch):
    ids, label = batch
    table = tf.compat.v1.get_variable("table", [50, 2], initializer=tf.compat.v1.random_normal_initializer(seed=3))
    found = tf.nn.embedding_lookup(table, ids) * tf.cast(ids > 0, tf.float32)[..., tf.newaxis]
    with psfleet.part(1):
        return tf.reduce_mean(tf.square(tf.reduce_sum(found, axis=[1, 2]) - label))

def build(log="/dev/null"):
    def rows():
        with open(log, "a") as file:
            file.write("read\\n")
        for at in range(49):
            yield [at + 1] * (at % 7 + 1), at % 2

    def train(shard, shards):
        spec = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)
        return tf.data.Dataset.from_generator(rows, output_signature=spec).shard(shards, shard)

    return psfleet.GraphProgram(loss=loss, train=train)
"""


def trained(folder: Path, out: str, content: dict[str, Any], steps: int = STEPS, **sections: Any) -> np.ndarray:
    """The table after a run of two workers; one that was made before in the same folder is resumed."""
    (folder / "input_program.py").write_text(PROGRAM)
    job = {
        "name": "input",
        "program": "input_program:build",
        "fleet": {"ps": 1, "workers": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.01},
        "train": {"steps": steps, "batch_size": 4, "shuffle": 16},
        "device": {"intra_op_threads": 1},
        "input": content,
        **sections,
    }
    report = psfleet.train(job, out=folder / out, program_folder=folder)
    assert (report.status, report.final_step) == ("done", steps), report.error
    assert report.gradients.used == report.gradients.pushed
    checkpoint = newest(folder / out / "checkpoints")
    assert checkpoint is not None
    return read_tensors(checkpoint)["table"]


BUCKETS = {"pad": True, "bucket_boundaries": [3, 6]}


def test_a_run_resumed_on_data_in_memory_has_the_weights_of_one_that_reads_every_epoch(tmp_path: Path) -> None:
    unbroken = trained(tmp_path, "unbroken", BUCKETS)
    trained(tmp_path, "resumed", BUCKETS, steps=9)
    reads = tmp_path / "reads"
    preload = {"from": "preload", **BUCKETS}
    assert np.array_equal(trained(tmp_path, "resumed", preload, options={"log": str(reads)}), unbroken)
    assert reads.read_text().split() == ["read"] * 2, "each of the two workers reads its shard once"


@pytest.mark.extended
def test_one_graph_over_all_workers_reads_the_same_padded_batches(tmp_path: Path) -> None:
    in_graph = trained(tmp_path, "in-graph", BUCKETS, update={"replication": "in_graph"})
    assert np.allclose(in_graph, trained(tmp_path, "between-graph", BUCKETS), atol=1e-6)


@pytest.mark.extended
def test_replicas_of_two_parts_read_the_same_padded_batches_into_the_memory_of_one(tmp_path: Path) -> None:
    reads, preload = tmp_path / "reads", {"from": "preload", **BUCKETS}
    options, fleet = {"log": str(reads)}, {"ps": 1, "workers": 4, "parts": 2}
    parted = trained(tmp_path, "parts", preload, fleet=fleet, options=options)
    assert reads.read_text().split() == ["read"] * 2, "the first part of each replica reads its shard once"
    assert np.allclose(parted, trained(tmp_path, "workers", BUCKETS), atol=1e-6)
