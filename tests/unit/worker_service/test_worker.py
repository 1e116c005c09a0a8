"""When a worker that has lost a peer gives up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.program_samples import sample_job

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.errors import DeadlineError, LostPeerError, ProgramError, StoreAwayError
from worker_service import replication
from worker_service import worker as worker_module
from worker_service.progress import TrainingProgress
from worker_service.session_errors import LostConnectionError, UnreachableError
from worker_service.worker import SAME_ERROR_LIMIT, Worker

STALL_SECS, FIRST_BATCH_SECS = 600, 1800
"""The defaults of the job file."""
PS = Address("127.0.0.1", 1)
"""Nothing listens there."""


class Fleet:
    """A fleet with one ps, a clock, and a worker whose sessions lose their peer.

    Attributes:
        now: The time.
        is_reading: Whether another worker reads its first batch.
        phase: Of the ps.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.is_reading = False
        self.phase = pb.RUNNING
        monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        context: Any = SimpleNamespace(
            index=1,
            job=sample_job(),
            stop=SimpleNamespace(must_leave=lambda index: False),
            fleet=SimpleNamespace(describe=lambda: [self._state()], ps=(PS,)),
            tasks=SimpleNamespace(ps=(PS,), own=PS),
            update=None,
            layout=None,
            run="run",
            towers=(),
        )
        heartbeat: Any = SimpleNamespace(outcome=None, attach=lambda *_: None, detach=lambda: None)
        batches: Any = SimpleNamespace(wait_ended=0.0, announce_first=lambda: None, interruptible=lambda: lambda: None)
        self.batches = batches
        front_end: Any = None
        self.progress = TrainingProgress()
        self._worker = Worker(context, front_end, batches, heartbeat, self.progress)

    def lose(self, at: float, error: LostPeerError | None = None) -> None:
        """The worker loses a peer."""
        self.now = at
        lost = error or LostPeerError("DeadlineExceeded: a ps went away")
        self._worker._handle_loss(lost, progressed=False)

    def train(self) -> bool:
        """The worker joins generation 1; see `Worker.train`."""
        return self._worker.train(1)

    def warm_up(self, states: Any, errand: Callable[[], object]) -> None:
        """The worker waits for the warm-up, and finds these states of the ps; an errand comes meanwhile."""
        worker: Any = self._worker
        worker._context.job = SimpleNamespace(update=SimpleNamespace(warmup_steps=5))

        def until_step(step: int, what: str, is_replaced: Callable[[Any], bool]) -> None:
            assert not is_replaced(states)
            worker.errands.submit(errand)
            assert not is_replaced(states)

        worker._fleet = SimpleNamespace(until_step=until_step)
        worker._warm_up(0)
        assert not worker.errands.is_open

    def ends_wait(self, monkeypatch: pytest.MonkeyPatch, *, step: int, final_step: int) -> bool:
        """Whether the worker that has made the last step 9 of generation 1 trains on with this state of the ps."""
        found: list[bool] = []
        state = pb.ShardState(phase=self.phase, generation=1, step=step, final_step=final_step)
        monkeypatch.setattr(self._worker, "_shards", np.array([[9, 9]]))
        monkeypatch.setattr(self._worker._progress, "_step", 9)
        monkeypatch.setattr(self._worker._heartbeat, "states", [state], raising=False)

        def until(what: str, done: Callable[[Any], bool], extra_secs: float) -> None:
            assert extra_secs > STALL_SECS, "the chief can wait for so long twice"
            found.append(done([state]))

        monkeypatch.setattr(self._worker._fleet, "until", until)
        self._worker.after_final_step(1)
        return found[0]

    def _state(self) -> pb.ShardState:
        return pb.ShardState(phase=self.phase, reading_first_batch=self.is_reading)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


def test_a_worker_that_makes_no_step_gives_up(fleet: Fleet) -> None:
    fleet.lose(at=STALL_SECS - 1)
    with pytest.raises(DeadlineError, match="gave up after 600 s waiting for a step after step 0"):
        fleet.lose(at=STALL_SECS + 1)


def test_a_peer_lost_in_a_long_first_read_does_not_end_the_worker(fleet: Fleet) -> None:
    fleet.batches.wait_ended = 1700.0
    fleet.lose(at=1700)
    fleet.lose(at=1700 + STALL_SECS - 1)
    with pytest.raises(DeadlineError, match="gave up after 600 s"):
        fleet.lose(at=1700 + STALL_SECS + 1)


def test_a_worker_that_the_fleet_has_finished_without_goes_on_to_the_end(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its heartbeat has interrupted the wait for a batch, with which it would be late: it has read for hours."""
    caplog.set_level("INFO")
    fleet.phase = pb.COMPLETE
    fleet.batches.wait_ended = 9000.0
    for at in range(2 * SAME_ERROR_LIMIT):
        fleet.lose(9000.0 + at, LostPeerError("the wait for the data set of worker 1 was interrupted"))
    assert set(caplog.messages) == {"the fleet has made its last step without this worker, which was at step 0"}


def test_a_loss_is_logged_with_the_step_if_the_worker_knows_it(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A process that replaces another one opens its session at the step of the run."""
    fleet.lose(at=1)
    fleet.progress.session_opened(2146)
    fleet.lose(at=2)
    expected = "DeadlineExceeded: a ps went away"
    assert caplog.messages == [
        f"lost a peer before its first step: {expected}",
        f"lost a peer at step 2146: {expected}",
    ]


@pytest.mark.parametrize(
    ("step", "final_step", "trains"),
    [
        pytest.param(9, 9, False, id="it is still the last one"),
        pytest.param(7, 20, False, id="the state is older than the stop"),
        pytest.param(9, 20, True, id="another ps had refused the stop"),
        pytest.param(11, 20, True, id="and others train"),
        pytest.param(20, 20, False, id="without this worker"),
    ],
)
def test_a_worker_that_has_made_its_last_step_trains_on_if_that_is_moved(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, step: int, final_step: int, trains: bool
) -> None:
    assert fleet.ends_wait(monkeypatch, step=step, final_step=final_step) == trains


def test_a_worker_waits_for_the_first_batch_of_another(fleet: Fleet) -> None:
    fleet.is_reading = True
    fleet.lose(at=FIRST_BATCH_SECS - 1)
    with pytest.raises(DeadlineError, match="gave up after 1800 s"):
        fleet.lose(at=FIRST_BATCH_SECS + 1)


def test_a_worker_that_has_waited_for_the_first_batch_of_another_waits_for_its_step(fleet: Fleet) -> None:
    fleet.is_reading = True
    fleet.lose(at=FIRST_BATCH_SECS - 1)
    fleet.is_reading = False
    fleet.lose(at=FIRST_BATCH_SECS + 60)
    with pytest.raises(DeadlineError, match="gave up after 600 s"):
        fleet.lose(at=FIRST_BATCH_SECS + STALL_SECS)


def test_the_program_is_not_at_fault_if_connections_are_lost_again_and_again(fleet: Fleet) -> None:
    for at in range(2 * SAME_ERROR_LIMIT):
        fleet.lose(at, LostConnectionError("nothing was heard of a ps for 15 s"))


def test_the_program_is_not_at_fault_if_the_store_is_away_while_every_ps_is_healthy(fleet: Fleet) -> None:
    for at in range(2 * SAME_ERROR_LIMIT):
        fleet.lose(at, StoreAwayError("s3://bucket/run: the lease on the prefix was not renewed for 45 s"))
    with pytest.raises(DeadlineError, match=r"gave up after 600 s .*s3://bucket/run: the lease"):
        fleet.lose(STALL_SECS + 1, StoreAwayError("s3://bucket/run: the lease on the prefix was not renewed for 45 s"))


def test_the_program_is_at_fault_if_its_step_fails_again_and_again_on_a_healthy_fleet(fleet: Fleet) -> None:
    for at in range(SAME_ERROR_LIMIT - 1):
        fleet.lose(at, LostPeerError("InternalError: boom"))
    with pytest.raises(ProgramError, match="failed 5 times in a row while every ps is healthy: InternalError: boom"):
        fleet.lose(SAME_ERROR_LIMIT, LostPeerError("InternalError: boom"))


def test_a_data_plane_that_is_blocked_while_the_ps_are_healthy_is_not_the_programs_fault(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    for at in range(3 * SAME_ERROR_LIMIT):
        fleet.lose(at, UnreachableError("no session"))
    assert f"TensorFlow's port of ps 0 at {PS.data} cannot be reached (Connection refused)" in caplog.text
    with pytest.raises(DeadlineError, match=f"gave up after 600 s .*no session; .*ps 0 at {PS.data} cannot be reached"):
        fleet.lose(STALL_SECS + 1, UnreachableError("no session"))


def test_failures_while_a_ps_has_no_shard_do_not_count_against_the_program(fleet: Fleet) -> None:
    fleet.phase = pb.EMPTY
    for at in range(2 * SAME_ERROR_LIMIT):
        fleet.lose(at, LostPeerError("AbortedError: restarted"))
    fleet.phase = pb.RUNNING
    fleet.lose(20, LostPeerError("AbortedError: restarted"))


def test_the_graph_of_a_session_that_was_not_opened_is_not_used_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its abandoned thread holds a lock of the graph, to which the next session may add the wait for a step."""
    used: list[Any] = []
    losses = iter([UnreachableError("no session"), LostPeerError("AbortedError: restarted"), LostPeerError("again")])

    def train_generation(session: Any, *_: object) -> None:
        raise next(losses)

    monkeypatch.setattr(replication, "has_connections", lambda *_: False)
    monkeypatch.setattr(replication, "StepGraph", lambda *_: SimpleNamespace(connections=None))
    monkeypatch.setattr(replication, "WorkerSession", lambda graph, *_: nullcontext(used.append(graph)))
    monkeypatch.setattr(replication, "train_generation", train_generation)
    for _ in range(3):
        assert not fleet.train()
    unopened, lost, again = used
    assert unopened is not lost
    assert lost is again


def test_a_worker_that_waits_for_the_warm_up_does_errands_of_a_held_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(monkeypatch)
    found: list[int] = []
    fleet.warm_up([pb.ShardState(phase=pb.RUNNING, final_step=100, hold_at=0)], lambda: found.append(7))
    assert found == [7]
