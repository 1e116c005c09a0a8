"""Work that the control plane leaves for the thread that trains."""

from __future__ import annotations

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, UsageError
from worker_service.errands import Errands

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
