"""The throughput of each worker, over its processes."""

from __future__ import annotations

import pytest

from psfleet.control import control_pb2 as pb
from worker_service.chief.worker_rates import WorkerRates


class Beats:
    """Heartbeats of the chief, at times that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rates = WorkerRates(lambda: self.now)

    def at(self, secs: float, *workers: tuple[int, str, int]) -> None:
        """The counts of workers: index, process and gradients pushed."""
        self.now = secs
        found = [pb.WorkerState(index=index, process=process, pushed=pushed) for index, process, pushed in workers]
        self.rates.update([pb.ShardState(workers=found), None])


def test_a_rate_is_over_the_time_in_which_a_worker_pushed() -> None:
    beats = Beats()
    beats.at(0.0, (0, "a", 0), (1, "b", 0))
    beats.at(30.0, (0, "a", 10), (1, "b", 0))
    beats.at(32.0, (0, "a", 30), (1, "b", 5))
    beats.at(40.0, (0, "a", 110), (1, "b", 9))
    beats.at(99.0, (0, "a", 110), (1, "b", 9))
    assert beats.rates.gradients_per_sec() == pytest.approx({0: 10.0, 1: 0.5})


def test_a_restarted_worker_counts_with_all_its_processes() -> None:
    beats = Beats()
    beats.at(1.0, (0, "a", 1))
    beats.at(11.0, (0, "a", 101))
    beats.at(21.0, (0, "c", 5))
    beats.at(31.0, (0, "c", 55))
    assert beats.rates.gradients_per_sec() == pytest.approx({0: 150 / 20})


def test_there_is_no_rate_of_a_single_count_or_of_no_ps() -> None:
    beats = Beats()
    beats.at(1.0, (0, "a", 7))
    beats.rates.update([None])
    beats.rates.update([])
    assert beats.rates.gradients_per_sec() == {}
