"""Work that the control plane leaves for the thread that trains."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, UsageError
from worker_service.errands import Errands, awaited

HELD = [pb.ShardState(phase=pb.RUNNING, step=40, final_step=100, hold_at=40)]
TRAINING = [pb.ShardState(phase=pb.RUNNING, step=40, final_step=100)]


def fail() -> None:
    raise UsageError("no")


def test_calls_are_made_while_the_run_is_held() -> None:
    errands = Errands()
    errands.run(HELD)
    results = errands.submit(lambda: 7), errands.submit(fail)
    assert not results[0].done()
    errands.run(HELD)
    assert results[0].result(0) == 7
    with pytest.raises(UsageError, match="no"):
        results[1].result(0)


def test_a_call_that_will_not_be_made_says_so() -> None:
    errands = Errands()
    with pytest.raises(LostPeerError, match="not held"):
        errands.submit(lambda: 7).result(0)
    errands.run(HELD)
    waiting = errands.submit(lambda: 7)
    errands.close()
    with pytest.raises(LostPeerError, match="not held"):
        waiting.result(0)


def test_a_run_that_trains_makes_no_calls() -> None:
    errands = Errands()
    errands.run(HELD)
    waiting = errands.submit(lambda: 7)
    errands.run(TRAINING)
    assert not waiting.done()
    errands.close()


def test_a_call_that_is_refused_while_the_run_becomes_held_is_not_made() -> None:
    """The refusal comes between the look of the thread that trains and the moment at which it takes the call."""
    errands = Errands()
    made: list[int] = []

    class RefusedFirst(SimpleQueue[Any]):
        def get_nowait(self) -> Any:
            if errands.is_open:
                errands.close()
            return super().get_nowait()

    errands._waiting = RefusedFirst()
    result: Future[None] = Future()
    errands._waiting.put((lambda: made.append(1), result))
    errands.run(HELD)
    with pytest.raises(LostPeerError, match="not held"):
        result.result(0)
    assert made == []


def test_a_caller_that_has_gone_ends_the_wait_for_a_result_and_the_call_is_not_made() -> None:
    result: Future[int] = Future()

    def check() -> None:
        raise LostPeerError("the caller has gone")

    with pytest.raises(LostPeerError, match="has gone"):
        awaited(result, check, poll_secs=0.0)
    assert result.cancelled()


def test_the_result_of_a_call_is_returned_without_a_look_at_the_caller() -> None:
    result: Future[int] = Future()
    result.set_result(7)
    assert awaited(result, lambda: pytest.fail("not asked")) == 7


def test_an_error_that_nobody_expects_is_known_to_the_caller_and_to_the_thread_that_trains() -> None:
    errands = Errands()
    errands.run(HELD)
    result = errands.submit(lambda: {}["no such key"])
    with pytest.raises(KeyError):
        errands.run(HELD)
    with pytest.raises(KeyError):
        result.result(0)
