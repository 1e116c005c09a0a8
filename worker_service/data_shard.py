"""One shard of the training examples: the data set that `train` returns for it, shuffled and batched for an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.tf.batching import training_batches
from psfleet.tf.global_seed import data_seed
from psfleet.tf.program_data import training_data
from worker_service.batch_reader import Reading
from worker_service.examples_in_memory import in_memory
from worker_service.input_pipeline import batch_spec, prefetched
from worker_service.random_data import is_random, set_generators

logger = logging.getLogger("psfleet.worker")

EPOCH_STRIDE = 0x9E3779B97F4A7C1
"""Odd, so that each epoch of a shard has another shuffle seed (2^64 / golden ratio, cut to 60 bits)."""
NUM_GLOBAL_SEEDS = 2**31 - 1
"""TensorFlow takes its global seed modulo this number."""


class DataShard:
    """One shard of the training examples.

    The readers of a process share it, and one that was closed may still be in a call of `train`: it has nothing that
    belongs to a reader.

    Attributes:
        index: Its number, from 0.
        what: What this process is doing when the data set raises.
        num_examples: The data set's cardinality; negative if it is unknown or without end.
        is_finite: Whether the data set's cardinality says how many batches it has: not with buckets.
        is_endless: Whether it says that there is no end.
        is_random: Whether the data set has random operations; it is then made anew for each epoch that is read.
        varies: Whether each epoch has a length of its own.
    """

    def __init__(
        self,
        program: KerasProgram | GraphProgram,
        job: Job,
        index: int,
        num_shards: int,
        epoch: int,
        reading: Reading,
    ) -> None:
        """Calls `train`, and reads the examples into memory with `input: {from: preload}`.

        Args:
            epoch: The first epoch in which this worker reads the shard.

        Raises:
            ProgramError: `train` raised or returned something else, or the shard is smaller than a batch.
            ReadingClosedError: The reader was closed.
        """
        self._program = program
        self._job = job
        self.index = index
        self._num_shards = num_shards
        self._first_epoch = epoch
        self.what = f"reading the training data of shard {index}"
        dataset = self._made(epoch, reading)
        # Raises if the examples are not dense tensors.
        batch_spec(dataset, job, job.train.batch_size)
        if job.input.source == "preload":
            dataset = in_memory(dataset, job, index)
        self.is_random = is_random(dataset)
        self.num_examples = int(dataset.cardinality())
        self.is_finite = self.num_examples >= 0 and job.input.bucket_boundaries is None
        self.is_endless = self.num_examples == tf.data.INFINITE_CARDINALITY
        self.varies = self.is_random and not self.is_finite
        self._num_batches = self.num_examples // job.train.gradient_examples if self.is_finite else None
        if self._num_batches == 0:
            raise too_small(job, index, self.num_examples)
        self._fixed = None if self.is_random else dataset
        self._unread = {epoch: dataset} if self.is_random else {}
        self._lengths: dict[int, int] = {}
        seed = np.random.SeedSequence([job.train.seed, index]).generate_state(1, np.uint64)[0]
        self._seed = int(seed >> np.uint64(1))

    def num_batches(self, epoch: int) -> int | None:
        """Of an epoch; None as long as it is unknown."""
        return self._lengths.get(epoch) if self.varies else self._num_batches

    def has_read(self, epoch: int, num_batches: int) -> None:
        """An epoch was read to its end."""
        if self.varies:
            self._lengths[epoch] = num_batches
        else:
            self._num_batches = num_batches

    def has_examples(self, epoch: int) -> bool:
        """Whether the examples of an epoch can be read without a call of `train`."""
        return not self.is_random or epoch in self._unread

    def examples(self, epoch: int, reading: Reading) -> tf.data.Dataset:
        """The examples of an epoch, for one iteration: a second one of the same data set could have another order.

        Raises:
            ProgramError: `train` failed, or returned another number of batches than for the first epoch.
        """
        if self._fixed is not None:
            return self._fixed
        dataset = self._unread.pop(epoch, None)
        self._unread.clear()
        if dataset is None:
            dataset = self._made(epoch, reading)
            self._check_length(epoch, int(dataset.cardinality()))
        return dataset

    def epoch(self, examples: tf.data.Dataset, epoch: int) -> tf.data.Dataset:
        """The batches of one epoch."""
        with self.seeded_shuffle():
            return prefetched(self._batches(examples, tf.constant(epoch, tf.int64)))

    @property
    def has_known_epochs(self) -> bool:
        """Whether all its epochs have as many batches, which are made of one data set."""
        return self.is_finite and not self.is_random

    @property
    def options(self) -> tf.data.Options:
        """Of data that are not random, as the program has set them; a data set of data sets does not have them."""
        assert self._fixed is not None
        return self._fixed.options()

    def without_a_batch(self, examples: tf.data.Dataset) -> ProgramError:
        """The error for an epoch that gave no batch; reads its examples again to count them."""
        with user_code(self._job, self.what):
            return too_small(self._job, self.index, int(examples.reduce(np.int64(0), lambda count, _: count + 1)))

    def _made(self, epoch: int, reading: Reading) -> tf.data.Dataset:
        """The data set; its random operations without a seed, and its generators, get one that the epoch gives.

        `train` is called again if a trace of the step, which waits no longer than `slow_secs`, has set another seed
        meanwhile.

        Raises:
            ReadingClosedError: The reader was closed.
        """
        sequence = np.random.SeedSequence([self._job.train.seed, self.index, epoch])
        seed = _nonzero(int(sequence.generate_state(1)[0]))
        while True:
            with self._seeded(seed) as is_kept:
                reading.check()
                dataset = training_data(self._program, self._job, self.index, self._num_shards)
                reading.check()
                if is_kept():
                    set_generators(dataset, sequence)
                    return dataset
            logger.warning(
                "train(%d, %d) took longer than deadlines.slow_secs, and a new session has set TensorFlow's global "
                "seed meanwhile: it is called again, for the same random numbers as after a restart",
                self.index,
                self._num_shards,
                extra={"event": "train_called_again"},
            )

    def _seeded(self, seed: int) -> AbstractContextManager[Callable[[], bool]]:
        """Sets TensorFlow's global seed for the block, as no other reader does meanwhile.

        A reader that was closed may still be in such a block, but no longer than its call of `train` may take.
        """
        return data_seed(seed, self._job.deadlines.first_secs)

    def _check_length(self, epoch: int, num_examples: int) -> None:
        if self.is_finite and num_examples // self._job.train.gradient_examples != self._num_batches:
            count = num_examples if num_examples >= 0 else "an unknown number of"
            raise ProgramError(
                f"program {self._job.program!r}: train({self.index}, {self._num_shards}) returned {count} examples "
                f"for epoch {epoch} and {self.num_examples} for epoch {self._first_epoch}, expected as many for each"
            )

    def seeded_shuffle(self) -> AbstractContextManager[object]:
        """Sets TensorFlow's global seed for the block: the order of a shuffle that is made in it depends on that."""
        return self._seeded(_nonzero(self._job.train.seed))

    def fixed_batches(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """The batches of one epoch of data that are not random."""
        return training_batches(self.fixed_examples(epoch), self._job)

    def fixed_examples(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """The shuffled examples of one epoch of data that are not random."""
        assert self._fixed is not None
        return self._shuffled(self._fixed, epoch)

    def _batches(self, examples: tf.data.Dataset, epoch: tf.Tensor) -> tf.data.Dataset:
        return training_batches(self._shuffled(examples, epoch), self._job)

    def _shuffled(self, examples: tf.data.Dataset, epoch: tf.Tensor) -> tf.data.Dataset:
        train = self._job.train
        if not train.shuffle:
            return examples
        seed = tf.constant(self._seed, tf.int64) + epoch * EPOCH_STRIDE
        return examples.shuffle(train.shuffle, seed, reshuffle_each_iteration=False)


def too_small(job: Job, shard: int, num_examples: int) -> ProgramError:
    """The error for a shard without a single batch."""
    data = f"program {job.program!r}: the training data of shard {shard}"
    if num_examples == 0:
        return ProgramError(f"{data} are empty, expected the same examples in every epoch")
    where = "" if job.input.bucket_boundaries is None else " in one of the buckets of input.bucket_boundaries"
    return ProgramError(f"{data} have {num_examples} examples, expected at least {least_examples(job)}{where}")


def least_examples(job: Job) -> str:
    """The number of examples in a batch, as a text that names the fields."""
    train = job.train
    if train.accumulate == 1:
        return f"train.batch_size = {train.batch_size}"
    return f"train.batch_size * train.accumulate = {train.gradient_examples}"


def _nonzero(seed: int) -> int:
    """A global seed of TensorFlow, which must not be 0 here.

    With a global seed of 0, `tf.random.get_seed` compares the pair (0, seed of the operation) with (0, 0). The seed of
    the shuffle inside `flat_map` is a symbolic tensor, which has no truth value: OperatorNotAllowedInGraphError.
    """
    return seed % NUM_GLOBAL_SEEDS or NUM_GLOBAL_SEEDS - 1
