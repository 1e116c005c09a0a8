"""The types of the ids at which a Keras model reads an embedding table."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers

from psfleet.job.job import parse_job
from psfleet.job.program import KerasProgram
from worker_service.frontends import front_end, planned
from worker_service.local_step import LocalStep

ROWS, WIDTH, BATCH_SIZE = 2**33, 4, 2


@pytest.mark.parametrize(
    ("dtype", "read"),
    [
        ("uint64", 2**32 + 5),
        ("int64", 2**32 + 5),
        ("float64", 2**32 + 5),
        ("uint32", 2**31 + 5),
        ("int32", 5),
        ("uint8", 5),
        ("float32", 5),
    ],
)
def test_an_id_is_the_row_of_its_number_whatever_its_type(dtype: str, read: int) -> None:
    ids, y = np.full((BATCH_SIZE, 3), read, dtype), np.ones((BATCH_SIZE, 1), np.float32)

    def model() -> keras.Model:
        inputs = keras.Input((3,), dtype=dtype)
        rows = layers.Embedding(ROWS, WIDTH, name="user")(inputs)
        return keras.Model(inputs, layers.Dense(1, name="out")(layers.Flatten()(rows)))

    data = tf.data.Dataset.from_tensor_slices((ids, y))
    train = {"steps": 10, "batch_size": BATCH_SIZE, "seed": 7}
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    tables = {"user": {"rows": ROWS}}
    job = parse_job({"name": "a", "program": "p:b", "optimizer": optimizer, "train": train, "tables": tables})
    front = front_end(KerasProgram(model=model, loss="mse", train=lambda *_: data), job, 1, 0)
    step, values = LocalStep(front, planned(front, job)), front.initial_values()
    (table,) = step.training.tables
    with v1.Session(graph=step.graph) as session:
        found = session.run(table.ids, step.feeds(values) | step.batch((ids, y)))
    assert found.tolist() == [read]
