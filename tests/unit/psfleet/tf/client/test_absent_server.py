"""A client's session with a fleet of which one process is there, but not its TensorFlow server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tensorflow as tf

import psfleet
from psfleet.control.clients import ClientServicer
from psfleet.control.server import serving
from psfleet.errors import LostPeerError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetDeadlines
from psfleet.job.sections import Device
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tf.client import Fleet
from psfleet.tf.client.own_server import own_server
from psfleet.tf.server import boot
from psfleet.tls.data_plane import Direct

STEP_SECS = 1.0
LONG_SECS = 15.0
"""Far more than a busy machine needs, and far less than TensorFlow waits for an absent server."""
WAIT_SECS = 60.0


@contextmanager
def pauses() -> Iterator[list[float]]:
    """Context manager: how long a thread that does next to nothing stood still each time, in seconds."""
    found = [0.0]
    ended = threading.Event()

    def watch() -> None:
        seen = time.monotonic()
        while not ended.wait(0.02):
            now = time.monotonic()
            found.append(now - seen)
            seen = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def has_closed() -> bool:
    return all(thread.name != "close-session" for thread in threading.enumerate())


def test_a_session_is_lost_at_its_deadline_and_no_other_thread_stands_still() -> None:
    [absent] = free_addresses(1)
    access = FleetAccess(
        name="lab",
        id="lab-absent",
        version=psfleet.__version__,
        ps=[absent.data],
        device=Device(intra_op_threads=1, inter_op_threads=2),
        deadlines=FleetDeadlines(step_secs=STEP_SECS),
    )
    fleet = Fleet(access, own_server(lambda: Direct(free_addresses(1)[0], ()), access.device))
    with serving(absent, clients=ClientServicer(access, lambda job: None)), pauses() as found:
        began = time.monotonic()
        with pytest.raises(LostPeerError, match=r"no session with fleet lab within deadlines\.step_secs = 1 s"):
            fleet.session(tf.Graph())
        took = time.monotonic() - began
    assert took < LONG_SECS
    assert max(found) < LONG_SECS
    boot(absent, access.device)
    wait_until(has_closed, WAIT_SECS, "the session to be closed, which waits for the server")
