"""Makes the batches of all epochs of a worker, or of a loader's part, one data set."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.tf.batching import batched
from worker_service.data_shard import DataShard
from worker_service.input_pipeline import prefetched


def all_epochs(shards: Sequence[DataShard], first: int) -> tf.data.Dataset:
    """The batches of all epochs from one on, which take turns with the shards.

    One pipeline for each epoch would cost more than the step of a small model (60 ms of CPU time for that of LeNet).

    Args:
        shards: Those of the epochs `first`, `first + 1` and so on. Each has known epochs: one without a batch would be
            read forever.
    """

    def batches(epoch: tf.Tensor) -> tf.data.Dataset:
        parts = [shard.fixed_batches(epoch + number) for number, shard in enumerate(shards)]
        return functools.reduce(tf.data.Dataset.concatenate, parts)

    with shards[0].seeded_shuffle():
        rounds = tf.data.Dataset.range(first, tf.int64.max, len(shards))
        # The function has nothing for AutoGraph to convert, which would take longer than the rest of this.
        return prefetched(rounds.flat_map(tf.autograph.experimental.do_not_convert(batches)))


def all_passes(shard: DataShard, job: Job) -> tf.data.Dataset:
    """The batches of all passes over a shard, each with the number of its pass; the last one of a pass may be short.

    Args:
        shard: Of data that are neither random nor endless.
    """

    def batches(number: tf.Tensor) -> tf.data.Dataset:
        def numbered(*batch: Any) -> tuple[tf.Tensor, Any]:
            return number, batch

        examples = batched(shard.fixed_examples(number), job, job.train.gradient_examples)
        return examples.map(tf.autograph.experimental.do_not_convert(numbered))

    with shard.seeded_shuffle():
        numbers = tf.data.Dataset.range(tf.int64.max)
        return prefetched(numbers.flat_map(tf.autograph.experimental.do_not_convert(batches)))
