"""Embedding tables with `hash: true`: rows of strings and of any integers are those of a Hashing layer of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.layout import initial_rows
from worker_service.frontends import front_end, planned
from worker_service.local_step import LocalStep

ROWS, WIDTH = 50, 4
TEXTS = np.array([["ann", "bob", "carol"], ["ann", "", "7"]], object)
NUMBERS = np.array([[3, -1, 2**62], [3, 49, 50]])
Y = np.ones((2, 1), np.float32)


def job_of(**table: Any) -> Job:
    train = {"steps": 10, "batch_size": len(Y), "seed": 1}
    fields = {"name": "a", "program": "p:b", "optimizer": {"name": "sgd", "learning_rate": 0.1}, "train": train}
    return parse_job({**fields, "tables": {"user": {"rows": ROWS, **table}}})


def program(kind: str, ids: np.ndarray, table_rows: int = ROWS) -> KerasProgram | GraphProgram:
    """The rows of the ids, and a linear layer."""

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        del shard_index, num_shards
        return tf.data.Dataset.from_tensor_slices((ids.astype(str) if ids.dtype == object else ids, Y)).repeat()

    def model() -> keras.Model:
        inputs = keras.Input((3,), dtype="string" if ids.dtype == object else ids.dtype.name)
        found = layers.Flatten()(layers.Embedding(table_rows, WIDTH, name="user")(inputs))
        return keras.Model(inputs, layers.Dense(1, name="out")(found))

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        table, kernel = v1.get_variable("user", [table_rows, WIDTH]), v1.get_variable("kernel", [3 * WIDTH, 1])
        found = tf.reshape(tf.nn.embedding_lookup(table, batch[0]), [-1, 3 * WIDTH])
        return tf.reduce_mean(tf.square(found @ kernel - batch[1]))

    if kind == "graph":
        return GraphProgram(loss=loss, train=train)
    return KerasProgram(model=model, loss="mse", train=train, evaluate=lambda: train(0, 1).take(len(Y)))


@pytest.mark.parametrize("kind", ["keras", "graph"])
@pytest.mark.parametrize("ids", [TEXTS, NUMBERS], ids=["strings", "integers"])
def test_a_row_is_that_of_a_hashing_layer_of_keras(kind: str, ids: np.ndarray) -> None:
    job = job_of(hash=True)
    front = front_end(program(kind, ids), job, 1, 0)
    expected = layers.Hashing(ROWS)(tf.constant(ids)).numpy()
    step, values = LocalStep(front, planned(front, job)), front.initial_values()
    (table,) = step.training.tables
    with v1.Session(graph=step.graph) as session:
        found = session.run(table.ids, step.feeds(values) | step.batch((ids, Y)))
    assert found.tolist() == list(dict.fromkeys(expected.reshape(-1).tolist()))
    assert [each.is_hashed for each in front.embeddings] == [True]


def test_the_hash_is_that_of_all_versions() -> None:
    """Rows of earlier checkpoints would otherwise belong to other ids."""
    assert layers.Hashing(1000)(tf.constant([1, 2, 2**62], tf.int64)).numpy().tolist() == [849, 759, 503]


def test_an_evaluation_reads_the_rows_of_the_hashes() -> None:
    front = front_end(program("keras", TEXTS), job_of(hash=True), 1, 0)
    (spec,), values = front.embeddings, front.initial_values()
    read = layers.Hashing(ROWS)(tf.constant(TEXTS)).numpy()
    features = initial_rows(spec, np.arange(ROWS))[read].reshape(len(TEXTS), -1)
    expected = np.mean(np.square(features @ values["out/kernel"] + values["out/bias"] - Y))
    assert front.evaluate(values, lambda batches: [])["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["keras", "graph"])
@pytest.mark.parametrize(
    ("ids", "is_hashed", "expected"),
    [
        (TEXTS, False, "table user is read at ids of type string, expected integers; hash: true also takes strings"),
        (NUMBERS / 2, True, "table user is read at ids of type float64, expected integers or strings"),
    ],
)
def test_ids_of_another_type_are_refused(kind: str, ids: np.ndarray, is_hashed: bool, expected: str) -> None:
    job = job_of(hash=is_hashed)

    def built() -> None:
        front = front_end(program(kind, ids), job, 1, 0)
        LocalStep(front, planned(front, job))

    with pytest.raises(ProgramError) as refused:
        built()
    assert expected in f"{refused.value} {refused.value.details}"
