"""What a chief concludes from the states of all ps."""

from __future__ import annotations

import signal

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.errors import ReplacedError
from worker_service.fleet_state import States, check_chief, has_generation, stop_error


def states_with(incarnation: int) -> States:
    """One ps that cannot be reached, and one that knows a chief."""
    return [None, pb.ShardState(workers=[pb.WorkerState(index=0, incarnation=incarnation, address="new:2222")])]


def test_a_chief_writes_only_while_no_ps_knows_a_newer_one() -> None:
    check_chief(states_with(3), 3)
    check_chief([None], 3)
    with pytest.raises(ReplacedError, match="incarnation 3 was replaced by the process at new:2222 with incarnation 4"):
        check_chief(states_with(4), 3)


@pytest.mark.parametrize(
    ("state", "is_there"),
    [
        (pb.ShardState(generation=2, phase=pb.RUNNING), True),
        (pb.ShardState(generation=2, phase=pb.COMPLETE), True),
        (pb.ShardState(generation=3, phase=pb.RUNNING), False),
        (pb.ShardState(generation=2, phase=pb.EMPTY), False),
        (pb.ShardState(phase=pb.EMPTY), False),
    ],
    ids=["training", "complete", "another generation", "a shard that is closed", "restarted"],
)
def test_a_ps_without_a_shard_has_no_generation(state: pb.ShardState, is_there: bool) -> None:
    """While it builds the next shard, its generation is still that of the shard before."""
    assert has_generation(state, 2) == is_there


@pytest.mark.parametrize(
    ("own", "stored", "expected"),
    [(0, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGINT, 143), (0, 0, 143)],
    ids=["the chief before got the signal", "its own", "nobody knows"],
)
def test_the_exit_code_of_a_stopped_run_names_a_signal_also_after_a_restart_of_the_chief(
    own: int, stored: int, expected: int
) -> None:
    """A new chief has received no signal: 128 + 0 would look like no signal at all."""
    assert stop_error(own, [None, pb.ShardState(stop_signal=stored)]).exit_code == expected
