"""A worker's batches: shuffled, batched, repeated; batch t is a function of the seed, the shard and t."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.tf.program_data import training_data

PREFETCHED_BATCHES = 2
EPOCH_STRIDE = 0x9E3779B97F4A7C1
"""Odd, so that each epoch of a shard has another shuffle seed (2^64 / golden ratio, cut to 60 bits)."""
NUM_GLOBAL_SEEDS = 2**31 - 1
"""TensorFlow takes its global seed modulo this number."""


def batches(
    program: KerasProgram | GraphProgram, job: Job, shard_index: int, num_shards: int, start_batch: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Endless batches of one shard, from batch number `start_batch` on.

    Each epoch has its own order (`job.train.shuffle` > 0); examples at its end that do not fill a batch are dropped. To
    reach `start_batch`, whole epochs are skipped if the data set's length is known, and read if it is not.
    TensorFlow's global seed is set from `job.train.seed`: random operations of the data set without a seed of their own
    would otherwise depend on the operations created before.

    Yields:
        The arrays of one batch in `tf.nest.flatten` order, `[batch, ...]` each; read-only.

    Raises:
        ProgramError: At the first batch: `train` raised or returned something else, the shard is empty or smaller than
            a batch. At any batch: the data set raised, or an epoch had no batch.
    """
    tf.random.set_seed(_global_seed(job.train.seed))
    shard = _Shard(job, training_data(program, job, shard_index, num_shards), shard_index)
    batch_spec(shard.dataset, job, job.train.batch_size)
    num_examples = shard.num_examples()
    if num_examples is None:
        spans: Iterable[tf.data.Dataset] = (shard.epochs(epoch, epoch + 1) for epoch in itertools.count())
        num_skipped = start_batch
    elif num_examples < job.train.batch_size:
        raise shard.too_small(num_examples)
    else:
        first_epoch, num_skipped = divmod(start_batch, num_examples // job.train.batch_size)
        spans = [shard.epochs(first_epoch, tf.int64.max)]
    for span in spans:
        is_empty = True
        for batch in read(span, job, shard.reading):
            is_empty = False
            if num_skipped:
                num_skipped -= 1
            else:
                yield batch
        if is_empty:
            raise shard.too_small(shard.count())


def batch_spec(dataset: tf.data.Dataset, job: Job, batch_size: int | None) -> Any:
    """The structure of a batch: a `tf.TensorSpec` `[batch_size, ...]` for each tensor of an example.

    Raises:
        ProgramError: The examples hold something other than dense tensors.
    """

    def batched(spec: Any) -> tf.TensorSpec:
        if not isinstance(spec, tf.TensorSpec):
            got = type(spec).__name__
            raise ProgramError(f"program {job.program!r}: training examples hold a {got}, expected dense tensors")
        return tf.TensorSpec(tf.TensorShape([batch_size]).concatenate(spec.shape), spec.dtype)

    return tf.nest.map_structure(batched, dataset.element_spec)


def evaluation_batches(program: KerasProgram | GraphProgram, job: Job) -> tf.data.Dataset | None:
    """The evaluation data in batches, the last of which may be smaller; None if the program has none.

    Raises:
        ProgramError: `evaluate` raised or returned something else, or the data are empty or endless.
    """
    if program.evaluate is None:
        return None
    with user_code(job, "evaluate()"):
        dataset = program.evaluate()
    if not isinstance(dataset, tf.data.Dataset):
        got = type(dataset).__name__
        raise ProgramError(f"program {job.program!r}: evaluate() returned {got}, expected tf.data.Dataset")
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ProgramError(f"program {job.program!r}: the evaluation data are endless, expected no repeat()")
    with user_code(job, "reading the evaluation data"):
        is_empty = next(iter(dataset), None) is None
    if is_empty:
        raise ProgramError(f"program {job.program!r}: the evaluation data are empty, expected examples")
    return dataset.batch(job.evaluate.batch_size or job.train.batch_size).prefetch(PREFETCHED_BATCHES)


def read(dataset: tf.data.Dataset, job: Job, what: str) -> Iterator[tuple[np.ndarray, ...]]:
    """The elements of a data set in `tf.nest.flatten` order, as NumPy arrays that share its memory.

    The operation below the iterator's `next` is called, which takes half of its time.

    Raises:
        ProgramError: The data set raised while doing `what`, or holds something other than dense tensors.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            got = type(spec).__name__
            raise ProgramError(f"program {job.program!r}: {what}: a {got} is there, expected dense tensors")
    dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
    with user_code(job, what):
        iterator = iter(dataset)
    while True:
        with user_code(job, what):
            try:
                batch = tf.raw_ops.IteratorGetNext(
                    iterator=iterator._iterator_resource, output_types=dtypes, output_shapes=shapes
                )
            except tf.errors.OutOfRangeError:
                return
        yield tuple(np.asarray(tensor) for tensor in batch)


def _global_seed(seed: int) -> int:
    """`train.seed` as a global seed of TensorFlow, which must not be 0 here.

    With a global seed of 0, `tf.random.get_seed` compares the pair (0, seed of the operation) with (0, 0). The seed of
    the shuffle inside `flat_map` is a symbolic tensor, which has no truth value: OperatorNotAllowedInGraphError.
    """
    return seed % NUM_GLOBAL_SEEDS or NUM_GLOBAL_SEEDS - 1


@dataclass(frozen=True)
class _Shard:
    """One worker's training examples."""

    job: Job
    dataset: tf.data.Dataset
    index: int

    def num_examples(self) -> int | None:
        """Length of the data set; None if it is unknown or infinite."""
        cardinality = int(self.dataset.cardinality())
        return cardinality if cardinality >= 0 else None

    def epochs(self, first: int, stop: int) -> tf.data.Dataset:
        """The batches of epochs `first` to `stop` - 1 as one data set."""
        train = self.job.train
        seed = int(np.random.SeedSequence([train.seed, self.index]).generate_state(1, np.uint64)[0] >> np.uint64(1))

        def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
            examples = self.dataset
            if train.shuffle:
                epoch_seed = tf.constant(seed, tf.int64) + epoch * EPOCH_STRIDE
                examples = examples.shuffle(train.shuffle, epoch_seed, reshuffle_each_iteration=False)
            return examples.batch(train.batch_size, drop_remainder=True)

        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        epochs = tf.data.Dataset.range(first, stop).flat_map(epoch_batches)
        return epochs.prefetch(PREFETCHED_BATCHES).with_options(options)

    def count(self) -> int:
        """Number of examples, by reading them all."""
        with user_code(self.job, self.reading):
            return int(self.dataset.reduce(np.int64(0), lambda count, _: count + 1))

    def too_small(self, num_examples: int) -> ProgramError:
        """The error for a shard without a single batch."""
        data = f"program {self.job.program!r}: the training data of shard {self.index}"
        if num_examples == 0:
            return ProgramError(f"{data} are empty, expected the same examples in every epoch")
        batch_size = self.job.train.batch_size
        return ProgramError(f"{data} have {num_examples} examples, expected at least train.batch_size = {batch_size}")

    @property
    def reading(self) -> str:
        """What this process is doing when the data set raises."""
        return f"reading the training data of shard {self.index}"
