"""When the chief recovers the fleet, and when the run is over."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import Ps, sample_context, shard_state

from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, StoppedError, StoreAwayError
from worker_service.chief import chief as chief_module
from worker_service.chief.chief import Chief
from worker_service.chief.recovery import RecoveryResult

FAILED = pb.Outcome(exit_code=70, message="optimizer slot of w is NaN or infinite")


def chief_of(context: Any, recover: Any) -> Any:
    """A chief that has not learned from its heartbeats yet how the run ended."""
    heartbeat = SimpleNamespace(outcome=None, outcomes=[])
    heartbeat.finish = heartbeat.outcomes.append
    components = SimpleNamespace(
        recovery=SimpleNamespace(recover=recover),
        recorder=SimpleNamespace(begin=lambda generation, first_step: None, monitor=SimpleNamespace(final_step=100)),
        committer=SimpleNamespace(newest=None),
    )
    chief = SimpleNamespace(
        _context=context, _heartbeat=heartbeat, _components=components, _wait=lambda what, done: None,
        _can_recover=None, _progress=SimpleNamespace(step=4, peer_lost=lambda: None), _failures=0,
        _check_stall=lambda error, states: None,
    )  # fmt: skip
    chief._must_save = partial(Chief._must_save, chief)
    chief._states = partial(Chief._states, chief)
    chief._handle_loss, chief._pause = partial(Chief._handle_loss, chief), partial(Chief._pause, chief)
    return chief


def test_a_fleet_whose_run_a_ps_has_ended_is_not_recovered(tmp_path: Path) -> None:
    """A ps that found a tensor that is not finite has no shard to train any more, and must not count as lost."""
    ended = pb.ShardState(run="run", phase=pb.FINISHED, outcome=FAILED)

    def recover(states: Any, step: int) -> Any:
        pytest.fail("recovered")

    chief = chief_of(sample_context(tmp_path, [Ps(shard_state(4)), Ps(ended)]), recover)
    assert Chief.await_generation(chief) is None
    assert chief._heartbeat.outcomes == [FAILED]


class AwayStore:
    """A recovery that fails some times, because the store does not answer, and the pauses between its attempts.

    Attributes:
        seen: What was done, in order.
    """

    def __init__(self, failures: int) -> None:
        self._failures, self.seen = failures, list[str]()

    def recover(self, states: Any, step: int) -> RecoveryResult:
        self.seen.append("recover")
        if self.seen.count("recover") <= self._failures:
            raise StoreAwayError("s3://bucket/run: it does not answer")
        return RecoveryResult(1, 0)

    def pause(self, secs: float) -> None:
        assert secs > 0
        self.seen.append("pause")


@pytest.mark.parametrize("stops", [False, True], ids=["it trains", "a signal came before"])
def test_a_chief_that_attaches_to_a_healthy_fleet_waits_for_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """The training program is not at fault, however often the store does not answer."""
    store, states = AwayStore(failures=6), [shard_state(4), shard_state(4)]
    context = sample_context(tmp_path, [Ps(state) for state in states], stops=stops)
    # An event that is set ends a wait at once.
    wait = (lambda secs: None) if stops else store.pause
    stop: Any = context.stop
    stop.event = SimpleNamespace(is_set=lambda: stops, wait=wait)
    unset = SimpleNamespace(wait=store.pause)
    monkeypatch.setattr(chief_module, "threading", SimpleNamespace(Event=lambda: unset))
    chief = chief_of(context, store.recover)
    assert Chief.await_generation(chief) == 1
    assert store.seen == ["recover", "pause"] * 6 + ["recover"]


STATES = {
    "nothing trained since the restore": ([40, 40], pb.RUNNING, None, False),
    "others have trained": ([41, 43], pb.RUNNING, None, True),
    "and that is saved": ([43, 43], pb.RUNNING, 43, False),
    "and more since": ([44, 44], pb.RUNNING, 43, True),
    "the last step is saved": ([44, 44], pb.COMPLETE, 44, False),
}


def stopped_chief(tmp_path: Path, steps: list[int], phase: pb.Phase, saved: int | None) -> Any:
    """A chief that got SIGTERM; the fleet trains generation 1 from step 40."""
    states = [shard_state(step, phase=phase) for step in steps]
    for state in states:
        state.first_step = 40
    context = sample_context(tmp_path, [Ps(state) for state in states], stops=True)
    context.stop.error = lambda: StoppedError(15)
    chief = chief_of(context, lambda states, step: RecoveryResult(1, 0))
    chief._heartbeat.states = states
    if saved is not None:
        chief._components.committer.newest = SimpleNamespace(step=saved, generation=1)
    return chief


@pytest.mark.parametrize(("steps", "phase", "saved", "is_unsaved"), STATES.values(), ids=STATES.keys())
def test_a_signal_between_sessions_ends_the_run_unless_steps_would_be_lost(
    tmp_path: Path, steps: list[int], phase: pb.Phase, saved: int | None, is_unsaved: bool
) -> None:
    """With spares, the others train on while the chief starts again."""
    chief = stopped_chief(tmp_path, steps, phase, saved)
    if is_unsaved:
        assert Chief.await_generation(chief) == 1
    else:
        with pytest.raises(StoppedError):
            Chief.await_generation(chief)


@pytest.mark.parametrize(("steps", "phase", "saved", "is_unsaved"), STATES.values(), ids=STATES.keys())
def test_a_signal_ends_the_wait_for_an_evaluation_unless_the_step_must_be_built(
    tmp_path: Path, steps: list[int], phase: pb.Phase, saved: int | None, is_unsaved: bool
) -> None:
    chief = stopped_chief(tmp_path, steps, phase, saved)
    chief._components.recorder.finish_evaluation = lambda is_over: not is_over()
    if is_unsaved:
        Chief.before_build(chief)
    else:
        with pytest.raises(LostPeerError, match="while an evaluation runs"):
            Chief.before_build(chief)


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["none", "one ps", "both ps"])
def test_a_signal_does_not_end_the_wait_for_an_evaluation_before_the_fleet_is_known(tmp_path: Path, lost: int) -> None:
    """After a lost session there are no states until the next heartbeat, and each further loss would discard it again.

    Five of them while every ps is healthy would be an error of the training program.
    """
    chief = stopped_chief(tmp_path, [44, 44], pb.RUNNING, 43)
    chief._heartbeat.states = [None] * lost + chief._heartbeat.states[lost:]
    chief._components.recorder.finish_evaluation = lambda is_over: not is_over()
    Chief.before_build(chief)


def test_a_signal_does_not_undo_a_run_whose_final_step_is_saved(tmp_path: Path) -> None:
    """The others have trained to the end while the chief started again: it verifies the checkpoint and ends the run."""
    chief = stopped_chief(tmp_path, [100, 100], pb.COMPLETE, 100)
    assert Chief.await_generation(chief) == 1
    assert Chief.train(chief, generation=1)


def test_a_chief_does_not_open_a_session_for_a_stop_that_the_fleet_has_made_without_it(tmp_path: Path) -> None:
    chief = stopped_chief(tmp_path, [44, 44], pb.COMPLETE, None)
    assert Chief.train(chief, generation=1)
    chief._heartbeat.states = [None, None]
    assert Chief.train(chief, generation=1), "there was no heartbeat since the last loss"
