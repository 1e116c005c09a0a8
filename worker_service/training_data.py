"""A worker's training data: which shard it reads in which epoch, shuffled, batched, from any batch on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.tf.program_data import training_data
from worker_service.batch_reader import Batch, Reading
from worker_service.input_pipeline import PREFETCHED_BATCHES, batch_spec, read
from worker_service.random_data import is_random

logger = logging.getLogger("psfleet.worker")

EPOCH_STRIDE = 0x9E3779B97F4A7C1
"""Odd, so that each epoch of a shard has another shuffle seed (2^64 / golden ratio, cut to 60 bits)."""
NUM_GLOBAL_SEEDS = 2**31 - 1
"""TensorFlow takes its global seed modulo this number."""


class TrainingData:
    """The batches of one worker; batch t is a function of the seed, the worker's index and t.

    With as many workers as the quorum, worker i reads shard i in every epoch. With more, a worker that is always too
    late would withhold its shard from the model. Then the shards form a circle: worker i starts at shard i, and goes on
    to the next shard after each epoch. All workers go round at the same pace, a batch at each step, so that they keep
    their distances, whatever the lengths of the shards are: no two of them have the same batch of the same step, and in
    each round every worker has every batch once.

    A worker of index `num_shards` or higher was added to the running fleet. It follows the same path as worker
    `index % num_shards`, `index // num_shards` batches ahead.

    Args of the constructor:
        num_shards: Workers and spares of the job.
        rotates: Whether workers go on to the next shard after each epoch.
    """

    def __init__(
        self, program: KerasProgram | GraphProgram, job: Job, index: int, num_shards: int, rotates: bool
    ) -> None:
        self._program = program
        self._job = job
        self._num_shards = num_shards
        self._first_shard = index % num_shards
        self._ahead = index // num_shards
        self._epochs_of_round = num_shards if rotates else 1
        self._shards: dict[int, _Shard] = {}

    @classmethod
    def of_worker(cls, program: KerasProgram | GraphProgram, job: Job, index: int) -> TrainingData:
        """The data of a worker of a job."""
        replicas, rotates = job.fleet.replicas, job.quorum < job.fleet.replicas
        if index >= replicas and not rotates:
            logger.warning(
                "worker %d was added to a fleet without spares: workers keep their shards, and the examples of one "
                "that is always late are only used if an added worker has its shard; expected fleet.spares > 0",
                index,
                extra={"event": "fixed_shards"},
            )
        return cls(program, job, index, replicas, rotates)

    def batches(self, start: int, reading: Reading | None = None) -> Iterator[Batch]:
        """Endless batches from batch number `start` on.

        Each epoch has its own order (`job.train.shuffle` > 0); examples at its end that do not fill a batch are
        dropped. To reach `start`, epochs whose length is known are skipped, and others are read. The length is known
        from the data set's cardinality, or once an epoch of the shard has been read.

        Args:
            start: Number of the first batch.
            reading: Of the reader. Once that is closed, no further batch is read, nor skipped. Told when a worker that
                changes shards opens the next one.

        Yields:
            The arrays of one batch in `tf.nest.flatten` order, `[batch, ...]` each; read-only.

        Raises:
            ProgramError: `train` raised or returned something else, a shard is empty or smaller than a batch, the data
                set raised, or an epoch had no batch.
        """
        reading = reading or Reading()
        epoch, num_skipped = self._locate(start + self._ahead)
        while True:
            reading.opens_shard = self._epochs_of_round > 1
            shard = self._shard(epoch)
            reading.opens_shard |= shard.is_random
            stays = self._epochs_of_round == 1 and shard.is_finite and not shard.is_random
            dataset = shard.all_epochs(epoch) if stays else shard.epoch(epoch)
            num_read = 0
            for batch in read(dataset, self._job, shard.reading):
                if reading.is_closed:
                    return
                num_read += 1
                reading.opens_shard = False
                if num_read > num_skipped:
                    yield batch
            if not num_read:
                raise shard.too_small(shard.count())
            shard.num_batches = num_read
            num_skipped = max(0, num_skipped - num_read)
            epoch += 1

    def num_skipped(self, start: int) -> int | None:
        """How many batches `batches(start)` would read before it yields; None: a shard before `start` was never read.

        From any thread; calls no function of the user's.
        """
        number = rest = start + self._ahead
        for epoch in range(self._epochs_of_round):
            shard = self._shards.get(self._shard_index(epoch))
            if shard is None:
                return None
            if shard.num_batches is None or rest < shard.num_batches:
                return rest
            rest -= shard.num_batches
        return self.num_skipped(number % (number - rest) - self._ahead)

    def _shard_index(self, epoch: int) -> int:
        return (self._first_shard + epoch % self._epochs_of_round) % self._num_shards

    def _shard(self, epoch: int) -> _Shard:
        """The shard of an epoch; `train` is called when it is first needed, and for each epoch of random data."""
        index = self._shard_index(epoch)
        if index not in self._shards:
            shard = self._shards[index] = _Shard(self._program, self._job, index, self._num_shards, epoch)
            if shard.is_endless and self._epochs_of_round > 1:
                logger.warning(
                    "the data set of shard %d repeats for ever: a worker keeps such a shard, whose examples are not "
                    "used if it is always late; expected no repeat()",
                    index,
                    extra={"event": "fixed_shards"},
                )
        return self._shards[index]

    def _locate(self, number: int) -> tuple[int, int]:
        """The epoch of a batch and its number there; an earlier epoch if the length of that one's shard is unknown."""
        epoch, rest = self._walk(number)
        if epoch < self._epochs_of_round:
            return epoch, rest
        rounds, rest = divmod(number, number - rest)
        epoch, rest = self._walk(rest)
        return rounds * self._epochs_of_round + epoch, rest

    def _walk(self, number: int) -> tuple[int, int]:
        """As `_locate` in the first round; the number of its epochs and the batches that remain behind the round."""
        for epoch in range(self._epochs_of_round):
            length = self._shard(epoch).num_batches
            if length is None or number < length:
                return epoch, number
            number -= length
        return self._epochs_of_round, number


class _Shard:
    """One shard of the training examples.

    Attributes:
        reading: What this process is doing when the data set raises.
        is_finite: Whether the data set's cardinality says how long it is.
        is_endless: Whether it says that there is no end.
        is_random: Whether the data set has random operations; it is then made anew for each epoch.
        num_batches: Of an epoch; None as long as it is unknown.
    """

    def __init__(self, program: KerasProgram | GraphProgram, job: Job, index: int, num_shards: int, epoch: int) -> None:
        self._program = program
        self._job = job
        self._index = index
        self._num_shards = num_shards
        self._epoch = epoch
        self._dataset = self._make(epoch)
        self.is_random = is_random(self._dataset)
        self.reading = f"reading the training data of shard {index}"
        self.num_batches: int | None = None
        batch_spec(self._dataset, job, job.train.batch_size)
        num_examples = int(self._dataset.cardinality())
        self.is_finite = num_examples >= 0
        self.is_endless = num_examples == tf.data.INFINITE_CARDINALITY
        if self.is_finite:
            self.num_batches = num_examples // job.train.batch_size
            if not self.num_batches:
                raise self.too_small(num_examples)
        seed = np.random.SeedSequence([job.train.seed, index]).generate_state(1, np.uint64)[0]
        self._seed = int(seed >> np.uint64(1))

    def epoch(self, epoch: int) -> tf.data.Dataset:
        """The batches of one epoch."""
        if self.is_random and epoch != self._epoch:
            self._epoch, self._dataset = epoch, self._make(epoch)
        self._seed_shuffle()
        return _prefetched(self._batches(tf.constant(epoch, tf.int64)))

    def all_epochs(self, first: int) -> tf.data.Dataset:
        """The batches of all epochs from one on. A shard without a batch would be read forever."""
        self._seed_shuffle()
        return _prefetched(tf.data.Dataset.range(first, tf.int64.max).flat_map(self._batches))

    def _make(self, epoch: int) -> tf.data.Dataset:
        """The data set, whose random operations without a seed get one that is a function of the epoch."""
        entropy = [self._job.train.seed, self._index, epoch]
        tf.random.set_seed(_global_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0])))
        return training_data(self._program, self._job, self._index, self._num_shards)

    def _seed_shuffle(self) -> None:
        """Sets TensorFlow's global seed, on which the order of a shuffle depends; tracing a step sets it, too."""
        tf.random.set_seed(_global_seed(self._job.train.seed))

    def _batches(self, epoch: tf.Tensor) -> tf.data.Dataset:
        train, examples = self._job.train, self._dataset
        if train.shuffle:
            seed = tf.constant(self._seed, tf.int64) + epoch * EPOCH_STRIDE
            examples = examples.shuffle(train.shuffle, seed, reshuffle_each_iteration=False)
        return examples.batch(train.batch_size, drop_remainder=True)

    def count(self) -> int:
        """Number of examples, by reading them all."""
        with user_code(self._job, self.reading):
            return int(self._dataset.reduce(np.int64(0), lambda count, _: count + 1))

    def too_small(self, num_examples: int) -> ProgramError:
        """The error for a shard without a single batch."""
        data = f"program {self._job.program!r}: the training data of shard {self._index}"
        if num_examples == 0:
            return ProgramError(f"{data} are empty, expected the same examples in every epoch")
        batch_size = self._job.train.batch_size
        return ProgramError(f"{data} have {num_examples} examples, expected at least train.batch_size = {batch_size}")


def _prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Read ahead, in a fixed order, without threads that tune themselves."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    return batches.prefetch(PREFETCHED_BATCHES).with_options(options)


def _global_seed(seed: int) -> int:
    """`train.seed` as a global seed of TensorFlow, which must not be 0 here.

    With a global seed of 0, `tf.random.get_seed` compares the pair (0, seed of the operation) with (0, 0). The seed of
    the shuffle inside `flat_map` is a symbolic tensor, which has no truth value: OperatorNotAllowedInGraphError.
    """
    return seed % NUM_GLOBAL_SEEDS or NUM_GLOBAL_SEEDS - 1
