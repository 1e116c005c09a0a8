"""Writes the predictions of the batches of one worker."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError, StorageError
from psfleet.job.job import Job
from psfleet.job.prediction_files import Output, Request, Share, share_file, values_file
from psfleet.service.process import Stop
from psfleet.tf.program_data import batches_explained
from worker_service.driver_link import DriverLink
from worker_service.input_pipeline import read
from worker_service.predictions.names import features_of
from worker_service.predictions.predictor import Predictor
from worker_service.trial.signs_of_life import SignsOfLife


def write_share(
    predictor: Predictor,
    batches: tf.data.Dataset,
    job: Job,
    request: Request,
    link: DriverLink,
    index: int,
    life: SignsOfLife,
    stop: Stop,
) -> None:
    """Reads all batches, predicts those of a worker, and completes its share.

    Args:
        batches: Of the whole data set.
        job: With the callable of the data set as its program, for errors.
        link: To the driver, which gets the share when it is complete.

    Raises:
        ProgramError: The data are empty, the program failed, or predictions do not have a row for each example.
        StorageError: The share cannot be written.
        StoppedError: A signal stopped this worker.
    """
    folder = link.folder
    num_features = len(tf.nest.flatten(features_of(batches.element_spec)))
    checksum, num_examples, counts = 0, 0, []
    life.begin("batch 1", job.deadlines.first_secs)
    with _storage_errors(folder), _Values(folder, index, job) as values:
        for number, batch in enumerate(read(batches, job, "reading the data set")):
            if stop.event.is_set():
                raise stop.error()
            features = batch[:num_features]
            checksum = _checksum(features, checksum)
            num_examples += len(features[0])
            if number % request.workers == index:
                life.begin(f"the predictions of batch {number + 1}", job.deadlines.stall_secs)
                with batches_explained([each.shape for each in features]):
                    predictions = predictor.predict(features)
                values.add(predictions, len(features[0]))
                counts.append(len(features[0]))
            life.begin(f"batch {number + 2}", job.deadlines.first_secs)
        if not num_examples:
            raise ProgramError(f"program {job.program!r}: the data set is empty, expected examples")
    # Each delivery has a deadline of its own.
    life.begin("the share to be delivered")
    share = Share(
        outputs=values.outputs, counts=counts, num_examples=num_examples, checksum=checksum, attempt=request.attempt
    )
    with _storage_errors(folder):
        for output in range(len(share.outputs)):
            link.deliver(values_file(folder, index, output))
        share.write(folder, index)
        link.deliver(share_file(folder, index))


class _Values:
    """Context manager for the files of the outputs.

    Attributes:
        outputs: Those of the first batch; all others must have the same.
    """

    def __init__(self, folder: Path, index: int, job: Job) -> None:
        self.outputs: list[Output] = []
        self._folder = folder
        self._index = index
        self._job = job
        self._files: list[BinaryIO] = []
        self._stack = ExitStack()

    def __enter__(self) -> _Values:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, predictions: dict[str, np.ndarray], num_examples: int) -> None:
        """Appends the predictions of a batch."""
        for name, value in predictions.items():
            if value.ndim == 0 or len(value) != num_examples:
                expected = f"expected [{num_examples}, ...]: a row for each example"
                raise ProgramError(f"program {self._job.program!r}: {name} has shape {list(value.shape)}, {expected}")
            if value.dtype == object:
                raise ProgramError(f"program {self._job.program!r}: {name} is a tensor of strings, expected numbers")
        found = [
            Output(name=name, dtype=value.dtype.name, shape=list(value.shape[1:]))
            for name, value in predictions.items()
        ]
        if not self._files:
            self.outputs = found
            self._files = [
                self._stack.enter_context(values_file(self._folder, self._index, at).open("wb"))
                for at in range(len(found))
            ]
        require_equal(self.outputs, found, self._job.program)
        for file, value in zip(self._files, predictions.values(), strict=True):
            file.write(np.ascontiguousarray(value).data)


def require_equal(outputs: Sequence[Output], found: Sequence[Output], program: str) -> None:
    """Raises ProgramError if two batches differ in names, types or shapes of their predictions."""
    if list(outputs) != list(found):
        texts = [", ".join(f"{each.name} {each.dtype} {each.shape}" for each in side) for side in (found, outputs)]
        raise ProgramError(
            f"program {program!r}: an example's predictions are {texts[0]}, and of an earlier {texts[1]}"
        )


def _checksum(arrays: Sequence[np.ndarray], before: int) -> int:
    for array in arrays:
        # Strings are objects of Python.
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        before = zlib.crc32(content, zlib.crc32(repr(array.shape).encode(), before))
    return before


@contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or folder}: {error.strerror or error}") from error
