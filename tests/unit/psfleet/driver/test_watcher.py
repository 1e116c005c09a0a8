"""The watcher of a driver's workers: ends, silence, deaths, and workers that are missing."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.clock import Clock
from support.scripted_worker import ScriptedWorker

from psfleet import errors
from psfleet.driver.watcher import End, WorkerWatcher
from psfleet.errors import LostPeerError
from psfleet.job.sections import Deadlines

DEADLINES = Deadlines(start_secs=20, step_secs=5)


def watched(number: int = 2) -> tuple[WorkerWatcher, list[ScriptedWorker], Clock]:
    clock, workers = Clock(), [ScriptedWorker(index) for index in range(number)]
    watcher = WorkerWatcher(workers, DEADLINES, clock)
    watcher.start()
    return watcher, workers, clock


def ends_within(watcher: WorkerWatcher, clock: Clock, secs: int) -> list[End]:
    """The ends of looks each second."""
    found = []
    for _ in range(secs):
        clock.now += 1
        found += watcher.ends()
    return found


def test_a_process_that_ended_is_found_with_its_cause() -> None:
    watcher, workers, _ = watched()
    assert not list(watcher.ends())
    workers[1].end(errors.PROGRAM_FAILED, failure="no data")
    (end,) = watcher.ends()
    assert (str(end.watched), end.code, end.cause) == ("worker 1", 70, "no data (exit code 70)")
    end.watched.start(end.cause)
    assert workers[1].causes == ["", "no data (exit code 70)"]
    assert not list(watcher.ends())


def test_only_the_silent_worker_is_killed() -> None:
    watcher, workers, clock = watched()
    for worker in workers:
        worker.sign += 1
    list(watcher.ends())
    for _ in range(5):
        workers[0].sign += 1
        (*ends,) = ends_within(watcher, clock, 1)
    (end,) = ends
    assert (end.watched.index, end.cause, end.code) == (1, "no sign of life for 5 s", 137)
    assert [worker.is_killed for worker in workers] == [False, True]


def test_a_worker_that_is_done_is_no_longer_watched() -> None:
    watcher, workers, clock = watched()
    watcher.workers[0].is_done = True
    workers[0].end(errors.PROGRAM_FAILED)
    workers[1].is_absent = True
    assert not ends_within(watcher, clock, 20)
    with pytest.raises(LostPeerError, match="no worker was there for 20 s, expected worker 1"):
        ends_within(watcher, clock, 2)


def test_a_missing_worker_ends_nothing_while_another_one_is_there() -> None:
    watcher, workers, clock = watched()
    workers[0].is_absent = True
    for _ in range(30):
        workers[1].sign += 1
        assert not ends_within(watcher, clock, 1)


def test_the_limit_of_deaths_is_an_error() -> None:
    watcher, _, _ = watched(1)
    (worker,) = watcher.workers
    for _ in range(3):
        worker.count_death("killed", 3)
    with pytest.raises(LostPeerError, match="worker 0 died 4 times without a trial, last: killed"):
        worker.count_death("killed", 3, " without a trial")


@pytest.mark.parametrize(
    ("code", "failure", "expected"),
    [
        (errors.PROGRAM_FAILED, None, True),
        (errors.DONE, None, True),
        (errors.PROGRAM_FAILED, {"message": "no data"}, False),
        (errors.LOST_PEERS, None, False),
        (errors.SIGNAL_BASE + signal.SIGKILL, None, False),
    ],
)
def test_an_end_that_the_worker_did_not_log_is_the_programs(
    code: int, failure: dict[str, Any] | None, expected: bool
) -> None:
    watcher, _, _ = watched(1)
    assert End(watcher.workers[0], "", code, failure).is_by_program is expected


def test_all_workers_are_closed() -> None:
    watcher, workers, _ = watched()
    watcher.close()
    assert all(worker.is_closed for worker in workers)
