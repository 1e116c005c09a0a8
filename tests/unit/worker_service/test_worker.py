"""When a worker that has lost a peer gives up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.control import control_pb2 as pb
from psfleet.errors import DeadlineError, LostPeerError
from worker_service import worker as worker_module
from worker_service.progress import TrainingProgress
from worker_service.worker import Worker

STALL_SECS, FIRST_BATCH_SECS = 600, 1800
"""The defaults of the job file."""


class Fleet:
    """A fleet with one ps, a clock, and a worker whose sessions lose their peer.

    Attributes:
        now: The time.
        is_reading: Whether another worker reads its first batch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.is_reading = False
        monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        context: Any = SimpleNamespace(
            index=1,
            job=sample_job(),
            stop=SimpleNamespace(must_leave=lambda index: False),
            fleet=SimpleNamespace(describe=lambda: [self._state()]),
        )
        heartbeat: Any = SimpleNamespace(outcome=None)
        batches: Any = SimpleNamespace(first_wait_ended=0.0)
        self.batches = batches
        front_end: Any = None
        self._worker = Worker(context, front_end, batches, heartbeat, TrainingProgress())

    def lose(self, at: float) -> None:
        """The worker loses a peer."""
        self.now = at
        self._worker._handle_loss(LostPeerError("DeadlineExceeded: a ps went away"), progressed=False)

    def _state(self) -> pb.ShardState:
        return pb.ShardState(phase=pb.RUNNING, reading_first_batch=self.is_reading)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(monkeypatch)


def test_a_worker_that_makes_no_step_gives_up(fleet: Fleet) -> None:
    fleet.lose(at=STALL_SECS - 1)
    with pytest.raises(DeadlineError, match="gave up after 600 s waiting for a step after step 0"):
        fleet.lose(at=STALL_SECS + 1)


def test_a_peer_lost_in_a_long_first_read_does_not_end_the_worker(fleet: Fleet) -> None:
    fleet.batches.first_wait_ended = 1700.0
    fleet.lose(at=1700)
    fleet.lose(at=1700 + STALL_SECS - 1)
    with pytest.raises(DeadlineError, match="gave up after 600 s"):
        fleet.lose(at=1700 + STALL_SECS + 1)


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
