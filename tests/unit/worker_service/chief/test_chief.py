"""When the chief recovers the fleet, and when the run is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import Ps, sample_context, shard_state

from psfleet.control import control_pb2 as pb
from worker_service.chief.chief import Chief

FAILED = pb.Outcome(exit_code=70, message="optimizer slot of w is NaN or infinite")


def chief_of(context: Any, recover: Any) -> Any:
    """A chief that has not learned from its heartbeats yet how the run ended."""
    heartbeat = SimpleNamespace(outcome=None, outcomes=[])
    heartbeat.finish = heartbeat.outcomes.append
    components = SimpleNamespace(recovery=SimpleNamespace(recover=recover))
    return SimpleNamespace(
        _context=context, _heartbeat=heartbeat, _components=components, _wait=lambda what, done: None,
        _can_recover=None, _progress=SimpleNamespace(step=4),
    )  # fmt: skip


def test_a_fleet_whose_run_a_ps_has_ended_is_not_recovered(tmp_path: Path) -> None:
    """A ps that found a tensor that is not finite has no shard to train any more, and must not count as lost."""
    ended = pb.ShardState(run="run", phase=pb.FINISHED, outcome=FAILED)

    def recover(states: Any, step: int) -> Any:
        pytest.fail("recovered")

    chief = chief_of(sample_context(tmp_path, [Ps(shard_state(4)), Ps(ended)]), recover)
    assert Chief.await_generation(chief) is None
    assert chief._heartbeat.outcomes == [FAILED]
