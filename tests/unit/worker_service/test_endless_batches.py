"""Data sets of all epochs and passes, with the options of the program's data set."""

from __future__ import annotations

import pytest
import tensorflow as tf
from support.program_samples import sample_job

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from worker_service.batch_reader import Reading
from worker_service.data_shard import DataShard
from worker_service.endless_batches import all_epochs, all_passes

JOB = sample_job()


def shard(job: Job, index: int, is_known: bool) -> DataShard:
    def train(shard: int, shards: int) -> tf.data.Dataset:
        examples = tf.data.Dataset.range(20)
        if not is_known:
            examples = examples.filter(tf.autograph.experimental.do_not_convert(lambda example: example >= 0))
        options = tf.data.Options()
        options.threading.private_threadpool_size = 8
        options.deterministic = False
        options.autotune.enabled = True
        return examples.with_options(options)

    return DataShard(GraphProgram(loss=lambda batch: batch, train=train), job, index, 2, 0, Reading())


def check(dataset: tf.data.Dataset) -> None:
    """The order and the threads that tune themselves are psfleet's."""
    options = dataset.options()
    found = options.threading.private_threadpool_size, options.deterministic, options.autotune.enabled
    assert found == (8, True, False)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_batches_of_all_epochs_have_the_options_of_the_program(num_shards: int) -> None:
    check(all_epochs([shard(JOB, index, True) for index in range(num_shards)], 0))


@pytest.mark.parametrize("is_known", [True, False])
def test_the_batches_of_all_passes_have_the_options_of_the_program(is_known: bool) -> None:
    part = shard(JOB, 0, is_known)
    check(all_passes(part, part.examples(0, Reading()), JOB))
