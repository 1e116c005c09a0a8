"""A worker's batches as a function of the chief's graph: which it gives, what it reports, and how it fails."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import LostPeerError, ProgramError
from worker_service.batches import BatchNumbers
from worker_service.in_graph.batch_function import BatchFunction, requested_batch
from worker_service.progress import TrainingProgress

SPECS = [tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([2], tf.int64)]


class Data:
    """Batches of four examples; batch t has the number t everywhere."""

    def __init__(self) -> None:
        self.numbers = BatchNumbers(are_steps=False, num_workers=2)
        self.read: list[int] = []
        self.error: Exception | None = None

    def at(self, number: int) -> tuple[np.ndarray, ...]:
        """The batch, or the error."""
        self.read.append(number)
        if self.error is not None:
            raise self.error
        return np.full((4, 3), number, np.float32), np.arange(4)


@pytest.fixture
def data() -> Data:
    return Data()


def bound(data: Data, num_microbatches: int = 2) -> tuple[BatchFunction, TrainingProgress]:
    """The function with these data, each batch of which is used at ten times its number."""
    function, progress = BatchFunction(num_microbatches), TrainingProgress()
    batches: Any = data
    function.bind(batches, progress, lambda number: 10 * number)
    return function, progress


def test_an_operation_gets_the_microbatch_of_its_number(data: Data) -> None:
    function, _ = bound(data)
    with tf.Graph().as_default() as graph:
        number = v1.placeholder(tf.int64, [])
        x, label = requested_batch(number, SPECS)
    assert (x.shape, label.shape) == ((2, 3), (2,))
    with v1.Session(graph=graph) as session:
        first, second = (session.run([x, label], {number: at}) for at in (6, 7))
    assert function is not None, "TensorFlow keeps no reference"
    assert (first[0] == 3).all()
    assert (second[0] == 3).all()
    assert [*first[1], *second[1]] == [0, 1, 2, 3]
    assert data.read == [3, 3]


def test_each_further_batch_says_that_the_step_before_is_done(data: Data) -> None:
    function, progress = bound(data)
    for number in (8, 9, 8, 9, 10):
        function(np.int64(number))
    assert (progress.step, progress.pushed, progress.sessions) == (50, 1, 1)
    assert data.numbers.next(0) == 6, "an errand would begin with the batch after it"


def test_an_error_of_the_data_is_kept_for_the_thread_that_ends_the_worker(data: Data) -> None:
    function, _ = bound(data)
    function.check()
    data.error = ProgramError("disk 7 is gone")
    with pytest.raises(ProgramError):
        function(np.int64(0))
    with pytest.raises(ProgramError, match="disk 7 is gone"):
        function.check()
    with pytest.raises(ProgramError, match="disk 7 is gone"):
        function(np.int64(2))
    assert data.read == [0], "the data are not read again"


def test_an_interrupted_wait_for_a_batch_does_not_end_the_worker(data: Data) -> None:
    function, _ = bound(data)
    data.error = LostPeerError("interrupted")
    with pytest.raises(LostPeerError):
        function(np.int64(0))
    function.check()
    data.error = None
    assert function(np.int64(0))[1].tolist() == [0, 1]


def test_a_call_that_comes_before_the_data_waits_for_them(data: Data) -> None:
    function, found = BatchFunction(1), []
    thread = threading.Thread(target=lambda: found.append(function(np.int64(5))))
    thread.start()
    assert not found
    batches: Any = data
    function.bind(batches, TrainingProgress(), int)
    thread.join(10)
    assert (found[0][0] == 5).all()
