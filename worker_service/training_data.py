"""A worker's training data: which shard it reads in which epoch, from any batch on."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.batch_reader import Batch, Reading
from worker_service.data_shard import DataShard
from worker_service.endless_batches import all_epochs
from worker_service.input_pipeline import read
from worker_service.loaded_data import LoadedData
from worker_service.loader_stream import LoaderChangedError, LoaderLostError, check_loadable
from worker_service.loader_watch import Loader

logger = logging.getLogger("psfleet.worker")


class TrainingData:
    """The batches of one worker; batch t is a function of the seed, the worker's index and t.

    A batch is what one gradient is computed of: with `train.accumulate` k, k batches of the model in one.

    With as many workers as the quorum, worker i reads shard i in every epoch. With more, a worker that is always too
    late would withhold its shard from the model. Then the shards form a circle: worker i starts at shard i, and changes
    to the next shard after each epoch. All workers go round at the same pace, a batch at each step, so that they keep
    their distances, whatever the lengths of the shards are: no two of them have the same batch of the same step, and in
    each round every worker has every batch once.

    A worker of index `num_shards` or higher was added to the running fleet. It follows the same path as worker
    `index % num_shards`, `index // num_shards` batches ahead.

    Args of the constructor:
        num_shards: Workers and spares of the job.
        rotates: Whether workers change to the next shard after each epoch.
        loaders: Those that read, by index; empty: this process does.
        num_loaders: Returns the number of loaders that the run has; None: all.
    """

    is_replayable = True

    def __init__(
        self,
        program: KerasProgram | GraphProgram,
        job: Job,
        index: int,
        num_shards: int,
        rotates: bool,
        loaders: Sequence[Loader] = (),
        num_loaders: Callable[[], int] | None = None,
    ) -> None:
        self._program = program
        self._job = job
        self._num_shards = num_shards
        self._first_shard = index % num_shards
        self._ahead = index // num_shards
        self._epochs_of_round = num_shards if rotates else 1
        self._shards: dict[int, DataShard] = {}
        self._is_random_reported = False
        self._loaded = LoadedData(loaders, index, job, num_loaders) if loaders else None
        # A reader that follows a closed one waits for what that one reads into memory.
        preloads = job.input.source == "preload"
        self._opening: AbstractContextManager[object] = threading.Lock() if preloads else nullcontext()

    @classmethod
    def of_worker(
        cls,
        program: KerasProgram | GraphProgram,
        job: Job,
        index: int,
        loaders: Sequence[Loader] = (),
        num_loaders: Callable[[], int] | None = None,
    ) -> TrainingData:
        """The data of a worker of a job."""
        replicas, rotates = job.fleet.replicas, job.quorum < job.fleet.replicas
        if index >= replicas and not rotates:
            logger.warning(
                "worker %d was added to a fleet without spares: workers keep their shards, and the examples of one "
                "that is always late are only used if an added worker has its shard; expected fleet.spares > 0",
                index,
                extra={"event": "fixed_shards"},
            )
        return cls(program, job, index, replicas, rotates, loaders, num_loaders)

    def batches(self, start: int, reading: Reading | None = None) -> Iterator[Batch]:
        """Endless batches from batch number `start` on.

        Each epoch has its own order (`job.train.shuffle` > 0); examples at its end that do not fill a batch are
        dropped. To reach `start`, epochs whose length is known are skipped, and others are read. The length is known
        from the data set's cardinality, or once an epoch of the shard has been read; if random operations decide how
        many examples there are, once that very epoch has been read.

        Args:
            start: Number of the first batch.
            reading: Of the reader. Once that is closed, no further batch is read, nor skipped. `opens_shard` is set
                when another data set is opened, or the next epoch is shuffled.

        Yields:
            The arrays of one batch in `tf.nest.flatten` order, `[batch, ...]` each; read-only.

        Raises:
            ProgramError: `train` raised or returned something else, a shard is empty or smaller than a batch or its
                length changes, the data set raised, or an epoch had no batch.
            ReadingClosedError: The reader was closed during a call of `train`, or the search for a loader.
            DataStallError: No loader answered in time.
        """
        reading = reading or Reading()
        number = start
        while not reading.is_closed:
            try:
                for batch in self._batches(number, reading):
                    yield batch
                    number += 1
            except LoaderLostError as error:
                if reading.is_closed:
                    return
                reading.opens_shard = True
                is_lost = not isinstance(error, LoaderChangedError)
                logger.log(
                    logging.WARNING if is_lost else logging.INFO,
                    "%s: batch %d is read by %s", error, number, "the next loader that answers" if is_lost else "it",
                    extra={"event": "loader_lost" if is_lost else "loader_changed", "batch": number},
                )  # fmt: skip

    def _batches(self, start: int, reading: Reading) -> Iterator[Batch]:
        """As `batches`, until a loader is lost."""
        epoch, num_skipped = self._located(start, reading)
        opens = self._epochs_of_round > 1 or self._job.train.shuffle > 0
        while not reading.is_closed:
            shard = self._shard(epoch, reading)
            reading.opens_shard |= opens or shard.is_random
            examples = self._examples(shard, epoch, reading)
            if self._loaded is not None:
                check_loadable(examples, self._job, shard.what)
            shards = self._shards_of_round(epoch)
            dataset = all_epochs(shards, epoch) if shards else shard.epoch(examples, epoch)
            what = shard.what if len(shards) <= 1 else "reading the training data"
            num_read, ends = self._num_skipped_by_loader(shard, epoch, num_skipped), _ends(shards)
            for batch in self._read(dataset, what, num_read, reading):
                if reading.is_closed:
                    return
                num_read += 1
                reading.opens_shard = False
                if num_read > num_skipped:
                    yield batch
                # The reader asks for the next batch.
                reading.opens_shard = opens and bool(shards) and num_read % ends[-1] in (0, *ends)
            if not num_read:
                raise shard.without_a_batch(examples)
            shard.has_read(epoch, num_read)
            reading.opens_shard = opens
            # What was read may be the length of further epochs, too.
            epoch, num_skipped = (epoch + 1, 0) if num_skipped < num_read else self._located(start, reading)

    def _read(self, dataset: tf.data.Dataset, what: str, start: int, reading: Reading) -> Iterator[Batch]:
        """The batches of a data set from a number on, which is 0 if this process reads."""
        if self._loaded is None:
            return read(dataset, self._job, what)
        return self._loaded.read(dataset, what, start, reading)

    def _num_skipped_by_loader(self, shard: DataShard, epoch: int, num_skipped: int) -> int:
        """How many batches do not travel; all do in an epoch whose length is found by reading it."""
        length = shard.num_batches(epoch)
        return num_skipped if self._loaded is not None and length is not None and num_skipped < length else 0

    def report(self) -> None:
        """Nothing is counted."""

    def num_skipped(self, start: int) -> int | None:
        """How many batches `batches(start)` would read before it yields; None: a shard before `start` was never read.

        From any thread; calls no function of the user's.
        """
        located = self._locate(start + self._ahead, lambda epoch: self._shards.get(self._shard_index(epoch)))
        return located and located[1]

    def _shard_index(self, epoch: int) -> int:
        return (self._first_shard + epoch % self._epochs_of_round) % self._num_shards

    def _shard(self, epoch: int, reading: Reading) -> DataShard:
        """The shard of an epoch; `train` is called when it is first needed."""
        index = self._shard_index(epoch)
        with self._opening:
            if index in self._shards:
                return self._shards[index]
            shard = self._shards[index] = DataShard(self._program, self._job, index, self._num_shards, epoch, reading)
        if shard.is_endless and self._epochs_of_round > 1:
            logger.warning(
                "the data set of shard %d repeats for ever: a worker keeps such a shard, whose examples are not "
                "used if it is always late; expected no repeat()",
                index,
                extra={"event": "fixed_shards"},
            )
        return shard

    def _shards_of_round(self, first: int) -> list[DataShard]:
        """The shards of a round of epochs, if each was opened and has known epochs; else an empty list."""
        shards = [self._shards.get(self._shard_index(first + number)) for number in range(self._epochs_of_round)]
        known = [shard for shard in shards if shard is not None and shard.has_known_epochs]
        return known if len(known) == len(shards) else []

    def _examples(self, shard: DataShard, epoch: int, reading: Reading) -> tf.data.Dataset:
        """The examples of an epoch; `train` is called for each epoch of random data."""
        if not shard.has_examples(epoch) and not self._is_random_reported:
            self._is_random_reported = True
            logger.info(
                "the data are random: train() is called for each epoch, from epoch %d on; to have it called once, "
                "shuffle with train.shuffle, or with reshuffle_each_iteration=False",
                epoch,
                extra={"event": "random_data", "epoch": epoch},
            )
        return shard.examples(epoch, reading)

    def _located(self, start: int, reading: Reading) -> tuple[int, int]:
        """The epoch of batch `start`, or the first before it of unknown length, and how many batches to skip in it."""
        located = self._locate(start + self._ahead, lambda epoch: self._shard(epoch, reading))
        assert located is not None
        return located

    def _locate(self, number: int, shard_of: Callable[[int], DataShard | None]) -> tuple[int, int] | None:
        """The epoch of a batch and its number there; an earlier epoch if the length of that one is unknown.

        None if `shard_of` has no shard for an epoch on the way.
        """
        epoch, rest = 0, number
        while (shard := shard_of(epoch)) is not None:
            length = shard.num_batches(epoch)
            if length is None or rest < length:
                return epoch, rest
            epoch, rest = epoch + 1, rest - length
            # A copy: the reader may open another shard meanwhile.
            if epoch == self._epochs_of_round and not any(shard.varies for shard in [*self._shards.values()]):
                # A round has `number - rest` batches, as all further rounds have: they are skipped at once.
                rounds, rest = divmod(rest, number - rest)
                epoch += rounds * self._epochs_of_round
        return None


def _ends(shards: Sequence[DataShard]) -> list[int]:
    """The numbers of batches after which shards with known epochs end, one after the other."""
    return list(itertools.accumulate(shard.num_batches(0) or 0 for shard in shards))
