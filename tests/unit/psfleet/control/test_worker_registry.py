"""Which of several processes is a worker."""

from __future__ import annotations

import pytest

from psfleet.control.worker_registry import Failure, WorkerRegistry
from psfleet.errors import ReplacedError

OLD, NEW = "0" * 16, "1" * 16
FAILURE = Failure(75, "the disk is full", "")


def test_the_process_that_has_joined_later_replaces_the_one_before() -> None:
    registry = WorkerRegistry(2)
    registry.beat(0, OLD)
    registry.beat(0, OLD)
    joined = registry.joined(0)
    assert joined is not None
    assert (joined.process, joined.signs) == (OLD, 2)
    registry.beat(0, NEW)
    joined = registry.joined(0)
    assert joined is not None
    assert (joined.process, joined.signs) == (NEW, 1)
    assert registry.joined(1) is None
    for call in (registry.beat, registry.require, lambda *caller: registry.fail(*caller, FAILURE)):
        with pytest.raises(ReplacedError, match="worker 0 was replaced by another process"):
            call(0, OLD)
    registry.require(0, NEW)
    assert registry.failure(OLD) is None


def test_a_removed_process_is_refused_and_leaves_its_place() -> None:
    registry = WorkerRegistry(1)
    registry.beat(0, OLD)
    registry.remove(0, OLD)
    assert registry.joined(0) is None
    with pytest.raises(ReplacedError):
        registry.beat(0, OLD)
    registry.beat(0, NEW)
    registry.remove(0, OLD)
    registry.require(0, NEW)


def test_after_a_restart_of_the_driver_any_call_makes_a_process_the_worker() -> None:
    registry = WorkerRegistry(1)
    registry.require(0, OLD)
    joined = registry.joined(0)
    assert joined is not None
    assert (joined.process, joined.signs) == (OLD, 0)
    with pytest.raises(ReplacedError):
        registry.require(0, NEW)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_that_no_worker_has_is_refused(index: int) -> None:
    registry = WorkerRegistry(2)
    with pytest.raises(IndexError):
        registry.require(index, OLD)
    with pytest.raises(IndexError):
        registry.beat(index, OLD)
    assert registry.joined(1) is None


def test_all_are_released_once_each_knows_or_has_failed() -> None:
    registry = WorkerRegistry(2)
    assert not registry.are_released(), "they may join yet"
    registry.beat(0, OLD)
    registry.release(OLD)
    assert not registry.are_released()
    registry.beat(1, NEW)
    assert not registry.are_released()
    assert registry.are_there()
    registry.fail(1, NEW, Failure(70, "NaN", ""))
    assert registry.are_released()
    assert registry.are_there()


@pytest.mark.parametrize("failure", [FAILURE, Failure(70, "", "")], ids=["temporary", "by the program"])
def test_a_process_that_is_started_again_has_not_heard_of_the_end(failure: Failure) -> None:
    registry = WorkerRegistry(1)
    registry.beat(0, OLD)
    registry.fail(0, OLD, failure)
    assert not registry.are_released()
    assert not registry.are_there()
    registry.beat(0, NEW)
    registry.release(NEW)
    assert registry.are_released()
    assert registry.are_there()


def test_what_a_process_has_said_is_why_it_ends() -> None:
    registry = WorkerRegistry(1)
    registry.beat(0, OLD)
    registry.fail(0, OLD, FAILURE)
    registry.fail(0, OLD, Failure(75, "", ""))
    assert registry.failure(OLD) == FAILURE
