"""Reads data sets by the loaders of the run, through tf.data service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from psfleet.errors import DataStallError
from psfleet.job.job import Job
from worker_service.batch_reader import Batch, Reading
from worker_service.loader_stream import LoaderChangedError, LoaderLostError, LoaderStream
from worker_service.loader_watch import ANSWER_SECS, Loader, LoaderWatch

logger = logging.getLogger("psfleet.worker")

OWN_SECS = 30.0
"""How long a worker waits for its own loader before it takes another one; one that was lost is replaced at once."""
POLL_SECS = 0.2


class LoadedData:
    """The data sets of one worker, each read by one loader: worker i reads from loader i modulo their number.

    When loaders are added, the worker continues its stream with the loader that is its own then.

    A data set is sent as its graph, with the skip to its first wanted batch: the loader makes the batches that this
    process would make. Each carries its number, because tf.data service may begin a stream again without an error.

    Args of the constructor:
        loaders: All that the run has or can have, by index.
        worker: Index of this worker.
        number: Returns the number of loaders that the run has; None: all.
    """

    def __init__(
        self, loaders: Sequence[Loader], worker: int, job: Job, number: Callable[[], int] | None = None
    ) -> None:
        self._loaders = loaders
        self._worker = worker
        self._number = number or (lambda: len(loaders))
        self._job = job
        # Whether another loader than its own is taken at once: that was lost, or is not there.
        self._takes_any = False

    def read(self, dataset: tf.data.Dataset, what: str, start: int, reading: Reading) -> Iterator[Batch]:
        """The batches of a data set from number `start` on; see `worker_service.input_pipeline.read`.

        Raises:
            ProgramError: The data set raised while doing `what`.
            LoaderLostError: The loader was lost, or another one is this worker's own now.
            DataStallError: No loader answered for `deadlines.start_secs`.
        """
        own = self._own()
        with self._connected(reading) as watch:
            self._takes_any = watch.loader.index != own
            try:
                for batch in self._batches(dataset.skip(start).enumerate(), what, watch):
                    yield batch
                    if self._own() != own:
                        raise LoaderChangedError(f"loader {self._own()} was added")
            except LoaderChangedError:
                self._takes_any = False
                raise
            except LoaderLostError:
                self._takes_any = True
                raise

    def _own(self) -> int:
        """Index of this worker's loader."""
        return self._worker % self._number()

    def _batches(self, numbered: tf.data.Dataset, what: str, watch: LoaderWatch) -> Iterator[Batch]:
        elements = LoaderStream(numbered, self._job, what).elements(watch)
        for expected, (number, *batch) in enumerate(elements):
            if int(number) != expected:
                raise LoaderLostError(f"{watch.who} has begun its stream again")
            yield tuple(np.asarray(tensor) for tensor in batch)

    @contextmanager
    def _connected(self, reading: Reading) -> Iterator[LoaderWatch]:
        """The watch of a loader that answers."""
        began, pause = time.monotonic(), threading.Event()
        start_secs = self._job.deadlines.start_secs

        def left() -> float:
            return began + start_secs - time.monotonic()

        while True:
            own = self._own()
            order = [*self._loaders[own : self._number()], *self._loaders[:own]]
            takes_any = self._takes_any or start_secs - left() >= min(OWN_SECS, start_secs / 2)
            for loader in order if takes_any else order[:1]:
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
                raise DataStallError(f"loader {own} at {order[0].address.control} or another one to answer", start_secs)
            pause.wait(POLL_SECS)
