"""A worker's session with a ps that is gone is given up, whatever TensorFlow waits for; servers are in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.job.job import Job, parse_job
from psfleet.processes.ports import free_addresses
from psfleet.tf.server import boot
from worker_service import session as tested
from worker_service.session import WorkerSession

SECS = 60.0
"""Far more than anything here takes."""
RUN = "gone"


def job(step_secs: float) -> Job:
    """One whose steps have a deadline."""
    return parse_job(
        {
            "name": RUN,
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 1},
            "deadlines": {"step_secs": step_secs},
        }
    )


@pytest.fixture
def addresses() -> Iterator[tuple[Address, Address]]:
    """Of this worker, whose server runs, and of a ps that is not there; it is started when the test is over."""
    own, ps = free_addresses(2)
    boot(own, None)
    yield own, ps
    # What still waits for it ends then, and with it its threads.
    boot(ps, None)
    for thread in threading.enumerate():
        if thread.name in ("open-session", "close-session"):
            thread.join(SECS)
            assert not thread.is_alive(), f"{thread.name} still waits"


def new_session(
    step_secs: float, own: Address, ps: Address, connections: Any = None, connect: Callable[[], int] | None = None
) -> WorkerSession:
    """A session that needs the ps."""
    graph = tf.Graph()
    with graph.as_default():
        initializer, shard_steps = tf.no_op(), tf.zeros([1, 2], tf.int64)
    step: Any = SimpleNamespace(
        graph=graph,
        initializer=initializer,
        shard_steps=shard_steps,
        worker_job="worker",
        connections=connections,
        direct=None,
        pull=shard_steps,
        frozen=np.zeros(0, np.uint8),
        abandonment=None,
    )
    return WorkerSession(step, job(step_secs), [ps], own, 0, connect=connect)


def test_a_session_with_a_ps_that_is_gone_is_given_up_at_the_deadline_of_a_step(
    addresses: tuple[Address, Address],
) -> None:
    opened = new_session(0.5, *addresses)
    with pytest.raises(LostPeerError, match="a peer went away while a session was opened"):
        opened.start()
    opened.close(wait_secs=0.0)


def test_a_session_that_is_closed_while_it_waits_for_a_ps_ends_its_start_at_once(
    addresses: tuple[Address, Address],
) -> None:
    opened = new_session(10 * SECS, *addresses)
    failures: list[Exception] = []

    def start() -> None:
        try:
            opened.start()
        except LostPeerError as error:
            failures.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    opened.close(wait_secs=0.0)
    thread.join(SECS)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_connections_that_are_opened_while_the_session_is_closed_do_not_stay_open(
    addresses: tuple[Address, Address],
) -> None:
    """The heartbeat closes it between two lines of the thread that trains."""
    events: list[str] = []

    def connect() -> int:
        opened.close(wait_secs=0.0)
        events.append("opened")
        return 1

    opened = new_session(SECS, *addresses, SimpleNamespace(close=lambda: events.append("closed")), connect)
    opened._begin()
    assert events[-2:] == ["opened", "closed"]


def test_what_a_resumed_session_pulls_moves_to_the_session_of_steps(
    addresses: tuple[Address, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = new_session(SECS, *addresses)
    moved: list[tuple[object, ...]] = []
    monkeypatch.setattr(tested, "pull_one_step", lambda *_: "start")
    monkeypatch.setattr(opened._sessions, "take", lambda *writers: moved.append(writers))
    assert opened.resume() == "start"
    assert moved == [(opened._step.pull,)]
    opened.close(wait_secs=0.0)
