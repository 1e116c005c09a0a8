"""A worker's batches as a function that the chief's graph calls on the device of that worker.

An operation `PyFunc` finds its function by a token in the process that runs it. So each worker reads its own data, any
kind of data set, and no batch crosses the network.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from psfleet.errors import LostPeerError, PsfleetError
from worker_service.accumulation import microbatches
from worker_service.batches import Batches
from worker_service.progress import TrainingProgress

TOKEN = "psfleet_batch"


def requested_batch(number: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """The batch of a number, in the default graph, on the device of the worker that has it.

    Args:
        number: int64 scalar, of the microbatch.
        specs: Of the tensors of a batch.
    """
    values = tf.raw_ops.PyFunc(input=[number], token=TOKEN, Tout=[spec.dtype for spec in specs])
    return [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]


class BatchFunction:
    """The function of this process; made before TensorFlow's server starts, at which the chief can call it.

    Args of the constructor:
        num_microbatches: Of each batch: `train.accumulate`.
    """

    def __init__(self, num_microbatches: int) -> None:
        self._num_microbatches = num_microbatches
        self._is_bound = threading.Event()
        self._lock = threading.Lock()
        self._error: PsfleetError | None = None
        self._newest = -1
        self._began = 0.0
        # The registry of tf.py_function, which has no public call to choose the token; it keeps weak references.
        script_ops._py_funcs._funcs[TOKEN] = self

    def bind(self, batches: Batches, progress: TrainingProgress, step_of: Callable[[int], int]) -> None:
        """Serves batches from now on; calls wait until then.

        Args:
            batches: Of this worker.
            progress: Each batch but the first is recorded there as the end of a step.
            step_of: Returns the global step at which the batch of a number is used.
        """
        self._batches, self._progress, self._step_of = batches, progress, step_of
        self._is_bound.set()

    def check(self) -> None:
        """Raises what ended the data of this worker, on the thread that waits for the end of the run."""
        if self._error is not None:
            raise self._error

    def __call__(self, number: np.ndarray) -> list[np.ndarray]:
        """The tensors of a microbatch; called by TensorFlow, also for a number that it had before."""
        self._is_bound.wait()
        at, part = divmod(int(number), self._num_microbatches)
        # An earlier call, of a session that the chief has lost, may still wait for its batch.
        with self._lock:
            self.check()
            try:
                batch = self._batches.at(at)
            except LostPeerError:
                raise
            except PsfleetError as error:
                self._error = error
                raise
            self._report(at)
        return microbatches(batch, self._num_microbatches)[part]

    def _report(self, number: int) -> None:
        if number == self._newest:
            return
        self._batches.numbers.served(number)
        now = time.perf_counter()
        if self._newest < 0:
            self._progress.session_opened(self._step_of(number))
        else:
            self._progress.step_done(self._step_of(number), now - self._began)
        self._newest, self._began = number, now
