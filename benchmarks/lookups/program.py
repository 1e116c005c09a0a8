"""A linear model of the mean of some rows of one embedding table, each batch with a known number of different rows."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet
from psfleet.callbacks import RunInfo

STEPS_FILE = "measured.jsonl"
"""In the run folder: a line for each step of the chief, with its number and seconds."""
NAME, WIDTH = "table", 16
IDS = 16
"""Rows of an example."""
TOUCHED = 10_000
"""Rows that a worker's batches have in all, whatever the size of the table is, evenly spread over it."""
BATCHES = 50


def build(rows: int, batch_size: int, all_rows: bool = False) -> psfleet.GraphProgram:
    """The program.

    Args:
        rows: Of the table.
        batch_size: `train.batch_size`; a batch has `IDS` times as many different rows.
        all_rows: Whether an epoch of all workers has each row of the table once.
    """

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        ids, y = batch
        table = v1.get_variable(NAME, [rows, WIDTH], initializer=v1.random_uniform_initializer(-0.05, 0.05))
        out = v1.get_variable("out", [WIDTH, 1], initializer=v1.ones_initializer())
        return tf.reduce_mean(tf.square(tf.reduce_mean(tf.gather(table, ids), 1) @ out - y))

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        if all_rows:
            return tf.data.Dataset.from_tensor_slices(every_row(shard_index, num_shards, rows))
        return tf.data.Dataset.from_tensor_slices(data(shard_index, rows, batch_size))

    return psfleet.GraphProgram(loss=loss, train=train)


def data(shard_index: int, rows: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids, int64 `[BATCHES * batch_size, IDS]`, and targets, float32 `[BATCHES * batch_size, 1]`.

    No batch has a row twice.
    """
    random = np.random.default_rng(shard_index)
    batches = [random.permutation(TOUCHED)[: batch_size * IDS] for _ in range(BATCHES)]
    ids = np.concatenate(batches).reshape(-1, IDS) * (rows // TOUCHED)
    return ids, random.normal(size=(len(ids), 1)).astype(np.float32)


def every_row(shard_index: int, num_shards: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """As `data`, with each row of the shard once; those that fill no example are left out."""
    random = np.random.default_rng(shard_index)
    own = random.permutation(np.arange(shard_index, rows, num_shards))
    ids = own[: len(own) // IDS * IDS].reshape(-1, IDS)
    return ids, random.normal(size=(len(ids), 1)).astype(np.float32)


class Measurements(psfleet.Callback):
    """Writes what each step of the chief took."""

    every_steps = 1

    def on_start(self, run: RunInfo) -> None:
        """See Callback."""
        self._file = run.folder / STEPS_FILE

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Callback."""
        with self._file.open("a") as file:
            file.write(json.dumps({"step": step, "secs": metrics["step_secs"]}) + "\n")
