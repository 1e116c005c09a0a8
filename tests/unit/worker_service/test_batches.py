"""How long a worker waits for a batch, and what ends the wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from psfleet.errors import DataStallError, LostPeerError, ProgramError
from psfleet.job.sections import Deadlines
from worker_service import batches as batches_module
from worker_service.batch_reader import Batch, Reading
from worker_service.batches import Batches, BatchNumbers
from worker_service.progress import TrainingProgress

DEADLINES = Deadlines(slow_secs=5, stall_secs=600, first_batch_secs=1800)
SECS = 30.0
"""Far more than any wait takes."""


class Source:
    """Data without an end.

    Args of the constructor:
        make: Returns the batches from a number on.
    """

    def __init__(self, make: Callable[[int], Iterator[Batch]], is_replayable: bool = True) -> None:
        self._make = make
        self.is_replayable = is_replayable

    def batches(self, start: int, reading: Reading) -> Iterator[Batch]:
        """See `Batches`."""
        return self._make(start)

    def num_skipped(self, start: int) -> int | None:
        """See `Batches`."""
        return start

    def report(self) -> None:
        """See `Batches`."""


def batches(
    make: Callable[[int], Iterator[Batch]],
    deadlines: Deadlines = DEADLINES,
    progress: TrainingProgress | None = None,
) -> Batches:
    return Batches(
        Source(make), BatchNumbers(are_steps=True, num_workers=1), deadlines, 3, progress or TrainingProgress()
    )


def numbers(start: int) -> Iterator[Batch]:
    for number in range(start, start + 1000):
        yield (np.array(number),)


class Clock:
    """Takes the place of the clock and of the readers: a batch takes as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.takes = 0.0
        self.reading = Reading()
        self.on_get: Callable[[], None] = lambda: None
        monkeypatch.setattr(batches_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(batches_module, "BatchReader", lambda make: self)

    def get(self, timeout_secs: float) -> Batch:
        """See `BatchReader`."""
        self.on_get()
        self.now += min(timeout_secs, self.takes)
        self.takes -= timeout_secs
        if self.takes > 0:
            raise queue.Empty
        return (np.array(0),)

    def close(self) -> None:
        """See `BatchReader`."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_first_batch_may_take_longer_than_the_others(clock: Clock) -> None:
    data = batches(numbers)
    clock.takes = 1799
    data.at(0)
    clock.takes = 599
    data.at(1)
    clock.takes = 1e9
    with pytest.raises(
        DataStallError, match="gave up after 600 s waiting for the data set of worker 3 to give batch 2"
    ):
        data.at(2)
    assert clock.now == 1799 + 599 + 600
    with pytest.raises(
        DataStallError, match="gave up after 1800 s waiting for the data set of worker 3 to give batch 9"
    ):
        batches(numbers).at(9)


def test_after_a_rollback_the_first_batch_may_take_longer_again(clock: Clock) -> None:
    data = batches(numbers)
    data.at(7)
    clock.takes = 1799
    data.at(3)


def test_a_first_batch_may_take_longer_after_its_wait_was_interrupted(clock: Clock) -> None:
    data = batches(numbers)
    data.interruptible()()
    with pytest.raises(LostPeerError):
        data.at(7)
    data.interruptible()
    clock.takes = 1799
    data.at(7)


def test_the_first_batch_of_the_next_shard_may_take_longer(clock: Clock) -> None:
    """The rest of the shard before takes 500 s, as no other batch of it comes."""
    progress = TrainingProgress()
    data = batches(numbers, progress=progress)
    data.at(0)
    began = clock.now

    def open_shard() -> None:
        clock.reading.opens_shard = 500 < clock.now - began < 1700
        if not 500 < clock.now - began < 502:
            assert progress.reading_first_batch == (clock.now - began > 501), f"after {clock.now - began} s"

    clock.on_get = open_shard
    clock.takes = 1799
    data.at(1)
    assert not progress.reading_first_batch
    clock.reading.opens_shard, clock.on_get = True, lambda: None
    clock.takes = 1e9
    with pytest.raises(DataStallError, match=r"gave up after 1800 s .* batch 2"):
        data.at(2)


def test_a_worker_reports_that_it_waits_for_a_first_batch(clock: Clock) -> None:
    progress = TrainingProgress()
    data = batches(numbers, progress=progress)
    assert progress.reading_first_batch, "the process starts"
    for number, is_first in ((0, True), (1, False), (9, False), (4, True), (5, False)):
        clock.on_get = partial(seen_at, progress, number, is_first)
        data.at(number)
        assert not progress.reading_first_batch


def test_a_report_of_a_first_batch_ends_with_an_interrupted_wait(clock: Clock) -> None:
    progress = TrainingProgress()
    data = batches(numbers, progress=progress)
    data.interruptible()()
    with pytest.raises(LostPeerError):
        data.at(7)
    assert not progress.reading_first_batch
    data.announce_first()
    assert progress.reading_first_batch
    data.interruptible()
    data.at(7)
    data.announce_first()
    assert not progress.reading_first_batch


def seen_at(progress: TrainingProgress, number: int, is_first: bool) -> None:
    assert progress.reading_first_batch == is_first, f"batch {number}"


def test_the_end_of_each_wait_is_known(clock: Clock) -> None:
    """The time of a wait, which has a deadline of its own, is none without progress of the fleet."""
    data = batches(numbers)
    for number, secs in ((0, 1700.0), (1, 500.0)):
        clock.takes = secs
        data.at(number)
        assert data.wait_ended == clock.now
    clock.now += 7
    data.at(1)
    assert data.wait_ended == clock.now - 7


def test_slow_data_are_told_once_for_each_batch(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    clock.takes = 100
    batches(numbers).at(4)
    [record] = caplog.records
    assert record.getMessage() == "waiting for the data set of worker 3 to give batch 4 since 5 s"


def test_a_data_set_that_blocks_does_not_block_the_training_thread() -> None:
    gate = threading.Event()

    def blocks(start: int) -> Iterator[Batch]:
        gate.wait(SECS)
        yield from numbers(start)

    soon = Deadlines(slow_secs=0.01, stall_secs=0.02, first_batch_secs=0.02)
    try:
        with pytest.raises(DataStallError, match="the data set of worker 3"):
            batches(blocks, soon).at(0)
    finally:
        gate.set()


def test_a_wait_can_be_interrupted_and_the_next_session_goes_on() -> None:
    gate = threading.Event()

    def interrupts(start: int) -> Iterator[Batch]:
        interrupt()
        gate.wait(SECS)
        yield from numbers(start)

    data = batches(interrupts)
    interrupt = data.interruptible()
    with pytest.raises(LostPeerError, match="the wait for the data set of worker 3 to give batch 5 was interrupted"):
        data.at(5)
    gate.set()
    data.interruptible()
    interrupt()
    assert [int(data.at(number)[0]) for number in (5, 6, 6, 9, 2)] == [5, 6, 6, 9, 2]


def test_what_reading_raises_is_raised_where_the_batch_is_awaited() -> None:
    def fails(start: int) -> Iterator[Batch]:
        yield from list(numbers(0))[start:2]
        raise ProgramError("boom")

    data = batches(fails, Deadlines(slow_secs=5, stall_secs=1, first_batch_secs=1))
    data.at(0)
    data.at(1)
    # Also the second time: a gradient of a held run, which a handle has asked for, can be the first to read it.
    for _ in range(2):
        with pytest.raises(ProgramError, match="boom"):
            data.at(2)


def test_two_threads_that_want_the_same_batch_get_that_one(clock: Clock) -> None:
    """With replicas in one graph, a call of a session that was closed may still read when the next one asks."""
    data, both_read, found = batches(numbers), threading.Event(), []
    other = threading.Thread(target=lambda: found.append(data.at(0)))

    def read_twice() -> None:
        if threading.current_thread() is other:
            both_read.set()
        elif not other.is_alive():
            other.start()
            both_read.wait(0.2)

    clock.on_get = read_twice
    found.append(data.at(0))
    other.join(SECS)
    assert len(found) == 2
    assert not both_read.is_set(), "the second thread has read, too"


def test_batches_that_cannot_be_replayed_follow_each_other_whatever_their_numbers_are() -> None:
    started: list[int] = []

    def made(start: int) -> Iterator[Batch]:
        started.append(start)
        return numbers(100)

    source = Batches(
        Source(made, is_replayable=False), BatchNumbers(are_steps=True, num_workers=1), DEADLINES, 3, TrainingProgress()
    )
    assert [int(source.at(number)[0]) for number in (7, 7, 8, 500, 499, 2)] == [100, 100, 101, 102, 103, 104]
    assert started == [7]
