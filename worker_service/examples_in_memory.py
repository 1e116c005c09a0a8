"""Reads a shard's examples into the memory of this process, for `input: {from: preload}`."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.user_code import user_code
from worker_service.broken_records import broken_file_named
from worker_service.random_data import is_random

logger = logging.getLogger("psfleet.worker")


def in_memory(dataset: tf.data.Dataset, job: Job, shard: int) -> tf.data.Dataset:
    """The examples of a shard, read once and in the same order, as a data set of known length.

    Raises:
        ProgramError: The data set is random or endless, or raised.
    """
    check_preload(dataset, job, shard)
    started = time.monotonic()
    with broken_file_named(dataset), user_code(job, f"reading the training data of shard {shard}"):
        held, count, num_bytes = read_once(dataset)
    secs = time.monotonic() - started
    logger.info(
        "shard %d is in memory: %d examples, %.1f MB, read in %.1f s",
        shard, count, num_bytes / 1e6, secs,
        extra={"event": "preloaded", "shard": shard, "examples": count, "bytes": num_bytes, "secs": secs},
    )  # fmt: skip
    return held


def read_once(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int, int]:
    """The same examples in the same order, held in memory, as a data set of known length; their number, and bytes.

    Args:
        dataset: Neither random nor endless.
    """
    cached = dataset.cache()
    # The cache keeps nothing of an iteration that does not reach the end.
    count, num_bytes = cached.reduce((np.int64(0), np.int64(0)), tf.autograph.experimental.do_not_convert(_added))
    return cached.apply(tf.data.experimental.assert_cardinality(int(count))), int(count), int(num_bytes)


def check_preload(dataset: tf.data.Dataset, job: Job, shard: int) -> None:
    """Raises ProgramError if the examples of a shard are random or endless: one reading does not have them all."""
    data = f"program {job.program!r}: the training data of shard {shard}"
    if is_random(dataset):
        raise ProgramError(
            f"{data} are random, and input.from: preload reads them once; expected from: worker, or data that "
            "train.shuffle shuffles"
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ProgramError(f"{data} repeat for ever, expected no repeat() with input.from: preload")


def _added(so_far: tuple[tf.Tensor, tf.Tensor], *example: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The number of examples and of the bytes in their tensors with another example."""
    count, size = so_far
    tensors = tf.nest.flatten(example, expand_composites=True)
    return count + 1, size + tf.add_n([_num_bytes(tensor) for tensor in tensors])


def _num_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.string:
        return tf.reduce_sum(tf.cast(tf.strings.length(tensor), tf.int64))
    return tf.size(tensor, tf.int64) * tensor.dtype.size
