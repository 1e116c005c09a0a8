"""Reads data sets by the loaders of the run, through tf.data service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.cancellation import CancellationManager

from psfleet.errors import DataStallError, LostPeerError, ProgramError
from psfleet.job.job import Job
from psfleet.job.user_code import user_code
from psfleet.tf.batching import padding_explained
from worker_service.batch_reader import Batch, Reading
from worker_service.broken_records import broken_file_named
from worker_service.loader_watch import ANSWER_SECS, Loader, LoaderWatch
from worker_service.random_data import calls_python

logger = logging.getLogger("psfleet.worker")

OWN_SECS = 30.0
"""How long a worker waits for its own loader before it takes another one; one that was lost is replaced at once."""
POLL_SECS = 0.2
END_SECS = 2.0
"""How long after an error of a connection the loader's end may be found; without it, the error is of the program."""
OF_CONNECTION = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


_lost: list[object] = []
"""The iterators of lost loaders: the deletion of one waits for its loader, which may be frozen."""


class LoaderLostError(LostPeerError):
    """The loader of a stream of batches has died, or does not answer."""


def check_loadable(examples: tf.data.Dataset, job: Job, what: str) -> None:
    """Raises ProgramError if the examples that are read in `what` call Python."""
    if calls_python(examples):
        raise ProgramError(
            f"program {job.program!r}: {what}: the data set calls Python (from_generator, py_function or "
            "numpy_function), which a loader cannot; expected TensorFlow's operations, or input.from: worker"
        )


class LoadedData:
    """The data sets of one worker, each read by one loader: worker i reads from loader i modulo their number.

    A data set is sent as its graph, with the skip to its first wanted batch: the loader makes the batches that this
    process would make. Each carries its number, because tf.data service may begin a stream again without an error.

    Args of the constructor:
        loaders: All of the run, by index.
        worker: Index of this worker.
    """

    def __init__(self, loaders: Sequence[Loader], worker: int, job: Job) -> None:
        own = worker % len(loaders)
        self._order = [*loaders[own:], *loaders[:own]]
        self._job = job
        self._is_lost = False

    def read(self, dataset: tf.data.Dataset, what: str, start: int, reading: Reading) -> Iterator[Batch]:
        """The batches of a data set from number `start` on; see `worker_service.input_pipeline.read`.

        Raises:
            ProgramError: The data set raised while doing `what`.
            LoaderLostError: The loader was lost.
            DataStallError: No loader answered for `deadlines.start_secs`.
        """
        with self._connected(reading) as watch:
            self._is_lost = False
            try:
                yield from self._batches(dataset.skip(start).enumerate(), what, watch)
            except LoaderLostError:
                self._is_lost = True
                raise

    def _batches(self, numbered: tf.data.Dataset, what: str, watch: LoaderWatch) -> Iterator[Batch]:
        service = tf.data.experimental.service
        cancellation, url = CancellationManager(), f"grpc://{watch.loader.dispatcher.data}"
        with self._errors(watch, what), tf.device("/cpu:0"):
            distributed = numbered.apply(service.distribute(service.ShardingPolicy.OFF, service=url, compression=None))
            iterator = iter(distributed)
            specs = tf.nest.flatten(distributed.element_spec)
            dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]

            def following() -> list[tf.Tensor]:
                return tf.raw_ops.IteratorGetNext(
                    iterator=iterator._iterator_resource, output_types=dtypes, output_shapes=shapes
                )

            next_element = cancellation.get_cancelable_function(
                tf.function(following, autograph=False).get_concrete_function()
            )

        def end() -> None:
            _lost.append(iterator)
            cancellation.start_cancel()

        watch.on_end(end)
        expected = 0
        while True:
            with broken_file_named(numbered), self._errors(watch, what):
                try:
                    number, *batch = next_element()
                except tf.errors.OutOfRangeError:
                    return
            if int(number) != expected:
                raise LoaderLostError(f"{watch.who} has begun its stream again")
            expected += 1
            yield tuple(np.asarray(tensor) for tensor in batch)

    @contextmanager
    def _errors(self, watch: LoaderWatch, what: str) -> Iterator[None]:
        """Converts an error of the block: of the connection if the loader is lost, or else of the program."""
        try:
            with padding_explained(), user_code(self._job, what):
                yield
        except ProgramError as error:
            if isinstance(error.__cause__, OF_CONNECTION) and watch.has_ended(END_SECS):
                raise LoaderLostError(f"{watch.who} is lost") from error
            raise

    @contextmanager
    def _connected(self, reading: Reading) -> Iterator[LoaderWatch]:
        """The watch of a loader that answers."""
        began, pause = time.monotonic(), threading.Event()
        start_secs = self._job.deadlines.start_secs

        def left() -> float:
            return began + start_secs - time.monotonic()

        while True:
            takes_any = self._is_lost or start_secs - left() >= min(OWN_SECS, start_secs / 2)
            for loader in self._order if takes_any else self._order[:1]:
                reading.check()
                with LoaderWatch(loader) as watch:
                    if watch.has_begun(min(ANSWER_SECS, max(0.0, left()))):
                        logger.info(
                            "%s reads the data of this worker", watch.who,
                            extra={"event": "loader", "loader": loader.index},
                        )  # fmt: skip
                        yield watch
                        return
            if left() <= 0:
                own = self._order[0]
                raise DataStallError(
                    f"loader {own.index} at {own.address.control} or another one to answer", start_secs
                )
            pause.wait(POLL_SECS)
