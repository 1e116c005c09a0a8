"""Reads data sets by the loaders of the run, through tf.data service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from psfleet.errors import DataStallError
from psfleet.job.job import Job
from worker_service.batch_reader import Batch, Reading
from worker_service.loader_stream import LoaderLostError, LoaderStream
from worker_service.loader_watch import ANSWER_SECS, Loader, LoaderWatch

logger = logging.getLogger("psfleet.worker")

OWN_SECS = 30.0
"""How long a worker waits for its own loader before it takes another one; one that was lost is replaced at once."""
POLL_SECS = 0.2


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
