"""Makes the batches of all epochs of a worker, or of a loader's part, one data set."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.tf.batching import batched
from worker_service.data_shard import DataShard, too_small
from worker_service.input_pipeline import prefetched

_TOO_FEW = re.compile(r"assertion failed: \[shard (\d+) has (\d+) examples\]")
"""TensorFlow's message about a part that `all_passes` refuses."""


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
        endless = rounds.flat_map(tf.autograph.experimental.do_not_convert(batches))
    for shard in shards:
        endless = endless.with_options(shard.options)
    return prefetched(endless)


def all_passes(shard: DataShard, examples: tf.data.Dataset, job: Job, first: int = 0) -> tf.data.Dataset:
    """The batches of all passes over a shard, each with the number of its pass; the last one of a pass may be short.

    One with fewer examples than a batch raises, see `too_few_explained`: an empty one would be read forever.

    Args:
        shard: Of data that are neither random nor endless.
        examples: Of the shard, in the order of the data set.
        first: Pass 0 has the order of this number; the next ones have those of the next numbers.
    """

    def batches(number: tf.Tensor) -> tf.data.Dataset:
        def numbered(*batch: Any) -> tuple[tf.Tensor, Any]:
            return number, batch

        examples = batched(shard.fixed_examples(number + first), job, job.train.gradient_examples)
        return examples.map(tf.autograph.experimental.do_not_convert(numbered))

    with shard.seeded_shuffle():
        numbers = tf.data.Dataset.range(tf.int64.max)
        endless = numbers.flat_map(tf.autograph.experimental.do_not_convert(batches))
    passes = prefetched(endless.with_options(shard.options))
    if shard.num_examples >= 0:
        return passes

    def checked(_: tf.Tensor) -> tf.data.Dataset:
        count = examples.take(job.train.gradient_examples).reduce(np.int64(0), lambda count, _: count + 1)
        message = f"shard {shard.index} has {{}} examples"
        is_enough = tf.equal(count, job.train.gradient_examples)
        with tf.control_dependencies([tf.debugging.Assert(is_enough, [tf.strings.format(message, count)])]):
            once = tf.data.Dataset.from_tensors(tf.identity(count))
        return once.flat_map(tf.autograph.experimental.do_not_convert(lambda _: passes))

    checking = tf.data.Dataset.range(1).flat_map(tf.autograph.experimental.do_not_convert(checked))
    return checking.with_options(passes.options())


@contextmanager
def too_few_explained(job: Job) -> Iterator[None]:
    """Replaces a ProgramError of the block that says in many words that `all_passes` has refused a part."""
    try:
        yield
    except ProgramError as error:
        found = _TOO_FEW.search(str(error))
        if found is None:
            raise
        raise too_small(job, int(found[1]), int(found[2])) from error
