"""Which batch a worker trains at which step, whatever happened to the session before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from psfleet.errors import LostPeerError
from psfleet.job.sections import Deadlines
from worker_service.batch_reader import Batch, Reading
from worker_service.batches import MAX_SKIPPED_BATCHES, Batches, BatchNumbers
from worker_service.progress import TrainingProgress
from worker_service.session_errors import RefusedCallError
from worker_service.session_start import SessionStart
from worker_service.training_loop import NullObserver, train, train_generation
from worker_service.updates import AsyncPart, SspPart, SyncPart

FINAL_STEP = 1000
Script = list[int | tuple[int, ...] | None]


class Data:
    """Counts how often the data are read from some batch on, and what is read; batch n is the number n."""

    is_replayable = True

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.read: list[int] = []
        self.skipped: Callable[[int], int | None] = lambda start: 0

    def batches(self, start: int, reading: Reading) -> Iterator[Batch]:
        """See `Batches`."""
        self.starts.append(start)
        for number in range(start, FINAL_STEP):
            self.read.append(number)
            yield (np.array(number),)

    def num_skipped(self, start: int) -> int | None:
        """See `Batches`."""
        return self.skipped(start)

    def report(self) -> None:
        """See `Batches`."""


class Session:
    """A session on one ps, or several, that goes to the next step as the test says.

    Args of the constructor:
        script: By call, the global step after it, on each ps if there are several; None: a peer is lost.
        abandoned: Local steps of those that end without a gradient.
    """

    def __init__(self, script: Script, abandoned: Collection[int] = ()) -> None:
        self._script = script
        self._abandoned = abandoned
        self.trained: list[tuple[int, int]] = []
        self.awaited: list[int] = []

    def train(self, batch: Batch, local_step: int, number: int) -> tuple[float | None, np.ndarray]:
        """See `WorkerSession`."""
        assert number == int(batch[0]), "a gradient has the number of its batch"
        self.trained.append((local_step, number))
        return None if local_step in self._abandoned else 0.0, self._next()

    def await_step(self, local_step: int) -> np.ndarray:
        """See `WorkerSession`."""
        self.awaited.append(local_step)
        return self._next()

    def _next(self) -> np.ndarray:
        after = self._script.pop(0)
        if after is None:
            raise LostPeerError("a ps went away")
        steps = [after] if isinstance(after, int) else after
        return np.array([[step, FINAL_STEP if self._script else step] for step in steps])


class Observed:
    """An observer that notes the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def start(self, global_step: int) -> None:
        """See `Observer`."""

    def step(self, session: Any, batch: Batch, global_step: int, loss: float, secs: float) -> None:
        """See `Observer`."""
        self.steps.append(global_step)


class Worker:
    """A worker's batches over several sessions."""

    def __init__(self, mode: str = "sync", num_workers: int = 2) -> None:
        self.data = Data()
        self._part = SyncPart() if mode == "sync" else AsyncPart()
        self._batches = Batches(
            self.data, BatchNumbers(mode == "sync", num_workers), Deadlines(), 0, TrainingProgress()
        )

    def session(self, at: int, script: Script, newest: int = -1, generation: int = 1) -> Session:
        """Trains a session that starts at a global step, with the newest of the worker's gradients on the ps."""
        session: Any = Session(script)
        start = SessionStart(np.array([[at, FINAL_STEP]]), np.array([newest]))
        self._batches.numbers.start(generation, start)
        with suppress(LostPeerError):
            train(session, start, self._part, self._batches, TrainingProgress(), NullObserver())
        return session


def test_a_step_that_was_made_without_this_session_does_not_shift_the_batches() -> None:
    worker = Worker()
    assert worker.session(0, [1, 2, 3, None]).trained == [(0, 0), (1, 1), (2, 2), (3, 3)]
    again = worker.session(3, [4, 5, 6], newest=3)
    assert (again.awaited, again.trained) == ([3], [(4, 4), (5, 5)])
    assert worker.data.starts == [0]


def test_a_step_is_repeated_with_its_own_batch() -> None:
    worker = Worker()
    worker.session(0, [1, 2, None])
    assert worker.session(2, [3, 4], newest=1).trained == [(2, 2), (3, 3)]
    assert worker.data.starts == [0]


def test_a_gradient_is_of_the_lowest_step_among_the_shards() -> None:
    """One that was of the step of a shard that is ahead would be newer than the parameters of the others."""
    worker = Worker()
    assert worker.session(0, [(2, 1), (2, 3), (3, 3)]).trained == [(0, 0), (1, 1), (2, 2)]
    again = worker.session(3, [(5, 4), (5, 5)], newest=3)
    assert (again.awaited, again.trained) == ([3], [(4, 4)])


def test_steps_that_others_made_are_skipped_by_reading_on() -> None:
    worker = Worker()
    assert worker.session(0, [1, 5, 6, 7]).trained == [(0, 0), (1, 1), (5, 5), (6, 6)]
    assert worker.data.starts == [0]


def test_a_step_that_is_abandoned_is_neither_observed_nor_counted_as_a_gradient() -> None:
    session: Any = Session([1, 3, 4], abandoned=[1])
    start, progress, observed = (
        SessionStart(np.array([[0, FINAL_STEP]]), np.array([-1])),
        TrainingProgress(),
        Observed(),
    )
    train(
        session, start, SyncPart(), Batches(Data(), BatchNumbers(True, 2), Deadlines(), 0, progress), progress, observed
    )
    assert (session.trained, observed.steps) == ([(0, 0), (1, 1), (3, 3)], [1, 4])
    assert (progress.step, progress.pushed, progress.abandoned) == (4, 2, 1)


def test_a_batch_far_ahead_or_behind_is_read_from_there() -> None:
    worker = Worker()
    far = 2 + MAX_SKIPPED_BATCHES
    assert worker.session(0, [1, far + 1, far + 2]).trained == [(0, 0), (1, 1), (far + 1, far + 1)]
    assert worker.data.starts == [0, far + 1]
    assert not set(range(10, far)) & set(worker.data.read)


@pytest.mark.parametrize(
    ("skipped", "starts"),
    [
        (MAX_SKIPPED_BATCHES + 1, [0]),
        (MAX_SKIPPED_BATCHES, [0, MAX_SKIPPED_BATCHES + 2]),
        (None, [0, MAX_SKIPPED_BATCHES + 2]),
    ],
)
def test_a_batch_far_ahead_is_read_from_where_fewer_batches_are_skipped(skipped: int | None, starts: list[int]) -> None:
    worker = Worker()
    worker.data.skipped = lambda start: skipped
    far = 1 + MAX_SKIPPED_BATCHES + 1
    assert worker.session(0, [1, far, far + 1]).trained == [(0, 0), (1, 1), (far, far)]
    assert worker.data.starts == starts


@pytest.mark.parametrize("generation", [1, 2])
def test_a_rollback_repeats_the_batches_of_its_steps(generation: int) -> None:
    worker = Worker()
    worker.session(0, [1, 2, 3, None])
    assert worker.session(1, [2, 3, 4], generation=generation).trained == [(1, 1), (2, 2), (3, 3)]


def test_a_process_that_joins_at_a_step_trains_the_batch_of_that_step() -> None:
    worker = Worker()
    assert worker.session(7, [8, 9]).trained == [(7, 7), (8, 8)]
    assert worker.data.starts == [7]


def test_async_a_broken_session_neither_repeats_nor_skips_a_batch() -> None:
    worker = Worker("async")
    assert worker.session(0, [2, 5, None]).trained == [(0, 0), (2, 1), (5, 2)]
    assert worker.session(6, [8, None], newest=2).trained == [(6, 3), (8, 4)], "the ps has the gradient of batch 2"
    assert worker.session(9, [11], newest=3).trained == [(9, 4)], "the gradient of batch 4 never arrived"
    assert worker.data.starts == [0]


def test_async_a_gradient_that_was_lost_while_others_were_dropped_is_not_taken_for_pushed() -> None:
    """Dropped gradients leave the shard's step where it is: that step does not say which gradient the ps has."""
    worker = Worker("async")
    assert worker.session(5, [5, 5, None]).trained == [(5, 2), (5, 3), (5, 4)]
    assert worker.session(5, [6], newest=3).trained == [(5, 4)]


def test_async_a_restarted_process_goes_on_after_the_gradients_of_its_predecessor() -> None:
    assert Worker("async", num_workers=4).session(40, [43, 44], newest=17).trained == [(40, 18), (43, 19)]


def test_async_a_session_that_broke_before_the_first_gradient_begins_again_with_its_batch() -> None:
    worker = Worker("async", num_workers=2)
    worker.session(8, [None])
    assert worker.session(20, [21]).trained == [(20, 4)]


def test_async_a_new_generation_starts_where_the_workers_together_are() -> None:
    worker = Worker("async", num_workers=4)
    worker.session(0, [2, 5, None])
    assert worker.session(40, [43, 44], generation=2).trained == [(40, 10), (43, 11)]


@pytest.mark.parametrize(("final_step", "starts"), [(11, []), (12, [5])])
def test_ssp_a_process_that_comes_back_after_the_last_step_reads_no_batch(final_step: int, starts: list[int]) -> None:
    """The data can be slow, or give none: the run would wait for them until its deadline, and fail."""
    data, session = Data(), Session([(11, 11)])
    batches = Batches(data, BatchNumbers(are_steps=False, num_workers=2), Deadlines(), 0, TrainingProgress())
    start = SessionStart(np.array([[11, 11], [11, final_step]]), np.array([-1, -1]))
    batches.numbers.start(1, start)
    connected: Any = session
    train(connected, start, SspPart(), batches, TrainingProgress(), NullObserver())
    assert (data.starts, len(session.awaited)) == (starts, len(starts))


class RefusingSession(Session):
    """A session on one ps that refuses its second call; the gradient of that call is on the ps or not."""

    def __init__(self, has_gradient: bool) -> None:
        super().__init__([1, 2, 3])
        self._has_gradient = has_gradient
        self.num_calls = 0

    def train(self, batch: Batch, local_step: int, number: int) -> tuple[float, np.ndarray]:
        """See `WorkerSession`."""
        self.num_calls += 1
        if self.num_calls == 2:
            raise RefusedCallError("received twice")
        return super().train(batch, local_step, number)

    def start(self) -> SessionStart:
        """See `WorkerSession`."""
        return SessionStart(np.array([[0, FINAL_STEP]]), np.array([-1]))

    def resume(self) -> SessionStart:
        """See `WorkerSession`."""
        return SessionStart(np.array([[1, FINAL_STEP]]), np.array([1 if self._has_gradient else 0]))


@pytest.mark.parametrize(
    ("has_gradient", "trained", "awaited"), [(False, [(0, 0), (1, 1), (2, 2)], []), (True, [(0, 0), (2, 2)], [1])]
)
def test_a_refused_call_is_repeated_unless_every_ps_has_its_gradient(
    has_gradient: bool, trained: list[tuple[int, int]], awaited: list[int]
) -> None:
    data = Data()
    batches = Batches(data, BatchNumbers(True, 2), Deadlines(), 0, TrainingProgress())
    session: Any = RefusingSession(has_gradient)
    train_generation(session, 1, SyncPart(), batches, TrainingProgress(), NullObserver())
    assert session.trained == trained
    assert session.awaited == awaited
    assert len(data.starts) == 1, "the data were read from their beginning once more"


@pytest.mark.parametrize(("newest", "batch"), [([6, 6], 7), ([6, 5], 6), ([-1, 6], 6), ([6, -1], 6), ([-1, -1], 5)])
def test_an_async_batch_is_repeated_until_every_ps_has_its_gradient(newest: list[int], batch: int) -> None:
    numbers = BatchNumbers(are_steps=False, num_workers=2)
    numbers.start(1, SessionStart(np.array([[11, 99], [16, 99]]), np.array(newest)))
    assert numbers.next(11) == batch
