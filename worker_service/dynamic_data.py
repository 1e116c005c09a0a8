"""A worker's training data with `input.sharding: dynamic`: each batch goes to the worker that asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.batch_reader import Batch, Reading
from worker_service.data_shard import DataShard
from worker_service.dynamic_part import DynamicPart
from worker_service.endless_batches import all_passes, too_few_explained
from worker_service.epoch_order import EpochOrder
from worker_service.joined_batches import JoinedBatches
from worker_service.loader_stream import LoaderStream, check_loadable
from worker_service.loader_watch import Loader
from worker_service.pass_counts import PassCounts
from worker_service.random_data import is_random


class DynamicData:
    """The batches of one worker.

    Loader j of N has part j of the data set, `train(j, N)`, and passes over it again and again. All workers read these
    passes from it together, so that each example of a pass goes to one worker. A loader that is started again begins
    its part anew, by a new pass: no worker can be given an example of a pass twice.

    An epoch of this worker is one pass of each loader. It begins its next epoch once each loader has come to the end of
    the pass, or is lost; one that was lost takes part again in the next epoch. No worker waits for another one.

    Args of the constructor:
        loaders: All of the run, by index.
        process: Returns the name of the process of the loader with an index, or raises LostPeerError.

    Attributes:
        counts: What training was given.
        is_replayable: Whether the batch of a number can be read again.
    """

    is_replayable = False

    def __init__(
        self,
        program: KerasProgram | GraphProgram,
        job: Job,
        loaders: Sequence[Loader],
        process: Callable[[int], str],
        counts: PassCounts,
    ) -> None:
        self._program = program
        self._job = job
        self._loaders = loaders
        self._process = process
        self.counts = counts
        self._streams: list[tuple[Callable[[int], LoaderStream], int]] = []

    def num_skipped(self, start: int) -> int | None:
        """Batches are not skipped."""
        return None

    def report(self) -> None:
        """Has the counts reported at once."""
        self.counts.report()

    def batches(self, start: int, reading: Reading) -> Iterator[Batch]:
        """Endless batches, whatever the number of the first one is; that decides the order of the first passes.

        Yields:
            The arrays of one batch in `tf.nest.flatten` order, `[batch, ...]` each.

        Raises:
            ProgramError: `train` failed, or returned data that loaders cannot pass over; or the data set raised.
            ReadingClosedError: The reader was closed during a call of `train`.
            DataStallError: No loader answered in time.
        """
        reading.opens_shard = True
        with self.opened(reading, start) as order:
            joined = JoinedBatches(self._job.train.gradient_examples, self._job.input.pad)
            for piece in order.pieces():
                joined.add(piece)
                while (found := joined.take()) is not None:
                    batch, counts = found
                    reading.opens_shard = False
                    reading.on_take = partial(self.counts.add, counts)
                    yield batch
                left = joined.keys()
                for key in self.counts.open():
                    if key not in left and order.has_left(key):
                        self.counts.end(key, order.is_lost(key))

    @contextmanager
    def opened(self, reading: Reading, start: int) -> Iterator[EpochOrder]:
        """Context manager for the parts of all loaders, which are read in it; arguments and errors as of `batches`."""
        if not self._streams:
            self._streams = [self._stream(loader.index, reading, start) for loader in self._loaders]
        changed = threading.Condition()
        parts = [
            DynamicPart(loader, partial(self._process, loader.index), stream, size, self.counts, changed)
            for loader, (stream, size) in zip(self._loaders, self._streams, strict=True)
        ]
        try:
            with too_few_explained(self._job):
                yield EpochOrder(parts, changed, reading, self._job.deadlines.start_secs)
        finally:
            for part in parts:
                part.close()

    def _stream(self, index: int, reading: Reading, start: int) -> tuple[Callable[[int], LoaderStream], int]:
        """The passes of one loader over its part, and the number of examples in that; negative: unknown.

        The passes are a function of the number of those that earlier processes of the loader have begun: a loader that
        is started again does not repeat their orders, nor does a run that is resumed at `start` begin with the first.
        """
        shard = DataShard(self._program, self._job, index, len(self._loaders), 0, reading)
        examples = shard.examples(0, reading)
        check_dynamic(examples, self._job, shard.what)

        def stream(num_passes: int) -> LoaderStream:
            passes = all_passes(shard, examples, self._job, start + num_passes)
            return LoaderStream(passes, self._job, shard.what)

        return stream, shard.num_examples


def check_dynamic(examples: tf.data.Dataset, job: Job, what: str) -> None:
    """Raises ProgramError if loaders cannot pass again and again over the examples that are read in `what`."""
    check_loadable(examples, job, what)
    data = f"program {job.program!r}: {what}: the data set"
    if is_random(examples):
        raise ProgramError(
            f"{data} is random, and a loader would draw the same numbers in each epoch; expected data that "
            "train.shuffle shuffles, or input.sharding: static"
        )
    if examples.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ProgramError(f"{data} repeats for ever, expected no repeat() with input.sharding: dynamic")
