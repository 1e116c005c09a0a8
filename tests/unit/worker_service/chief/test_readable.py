"""Checkpoints that cannot be read for the moment are waited for, also by a chief that starts or attaches to a fleet."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_job, shard_state, stored_root
from support.s3_server import BROKEN, S3Server, no_fault

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.read_errors import read_error
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import BadJobError, PsfleetError, StoppedError, StorageError, StoreAwayError
from psfleet.service import settings
from worker_service.chief import recovery as recovery_module
from worker_service.chief.components import chief_components
from worker_service.chief.events import Events
from worker_service.chief.readable import RETRY_SECS, once_readable
from worker_service.chief.recovery import Recovery

AWAY = StoreError("s3://bucket/run", "it does not answer")
STALE = read_error("manifest.json", OSError(errno.ESTALE, "Stale file handle"))


class Reads:
    """Reads whose errors a test gives, and the wait between them; then they succeed."""

    def __init__(self, *errors: Exception, on_pause: Callable[[], object] = lambda: None) -> None:
        self._errors, self._on_pause, self.pauses, self._is_set = [*errors], on_pause, list[float](), False
        event = SimpleNamespace(is_set=lambda: self._is_set, wait=self._pause)
        self.stop: Any = SimpleNamespace(event=event, error=lambda: StoppedError(15))

    def signal(self) -> None:
        self._is_set = True

    def _pause(self, secs: float) -> None:
        self.pauses.append(secs)
        self._on_pause()

    def read(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "content"


def test_a_read_that_fails_for_the_moment_is_made_again_after_a_pause() -> None:
    reads = Reads(AWAY, STALE, AWAY)
    assert once_readable(reads.read, 600.0, reads.stop) == "content"
    assert reads.pauses == [RETRY_SECS] * 3


@pytest.mark.parametrize(
    ("error", "secs", "raised", "message"),
    [
        pytest.param(StoreError("s3://b", "denied", is_denied=True), 600.0, BadJobError, "credentials", id="denied"),
        pytest.param(AWAY, 0.0, StorageError, "cannot be read for 0 s: s3://bucket/run: it does not", id="deadline"),
    ],
)
def test_a_read_is_not_made_again_for_ever(
    error: Exception, secs: float, raised: type[PsfleetError], message: str
) -> None:
    reads = Reads(error)
    with pytest.raises(raised, match=message):
        once_readable(reads.read, secs, reads.stop)
    assert reads.pauses == []


def test_a_signal_ends_the_wait_for_a_read() -> None:
    reads = Reads(AWAY, AWAY, AWAY)
    reads._on_pause = reads.signal
    with pytest.raises(StoppedError):
        once_readable(reads.read, 600.0, reads.stop)
    assert reads.pauses == [RETRY_SECS]


def test_a_chief_that_starts_while_its_store_is_away_waits_for_it(
    s3: S3Server, bucket: StoreFolder, tmp_path: Path
) -> None:
    """It reads there which checkpoint is the best one."""
    watched = {"store": f"{bucket}/run", "best": {"metric": "accuracy"}}
    job = sample_job(evaluate={"every_steps": 20}, checkpoint=watched)
    save(stored_root(bucket), 40)
    context = sample_context(tmp_path, job=job)
    s3.fault = lambda method, path: BROKEN if method == "GET" and path.endswith("manifest.json") else None
    pauses: list[float] = []

    def pause(secs: float) -> None:
        pauses.append(secs)
        s3.fault = no_fault

    event: Any = context.stop.event
    event.wait = pause
    front: Any = SimpleNamespace(initial_values=None)
    made = chief_components(settings.read({"PSFLEET_OUT": str(tmp_path)}), context, front)
    assert pauses == [RETRY_SECS]
    assert [checkpoint.step for checkpoint in made.recorder.monitor.take_due()] == [40]


@pytest.mark.parametrize("error", [AWAY, STALE], ids=["store", "disk"])
def test_an_attempt_to_attach_to_a_fleet_that_trains_fails_for_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The chief looks for weights that were set."""

    def refuse(_: object) -> Any:
        raise error

    monkeypatch.setattr(recovery_module, "committed_checkpoints", refuse)
    states = [shard_state(40), shard_state(40)]
    context = sample_context(tmp_path, [Ps(state) for state in states])
    with pytest.raises(StoreAwayError):
        Recovery(context, lambda: {}, {}, Events(tmp_path, context.job)).recover(states, 40)
