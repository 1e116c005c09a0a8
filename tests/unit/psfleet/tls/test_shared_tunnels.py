"""On a host with several processes, one has the tunnel to a peer, and the others use it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from psfleet.errors import LostPeerError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls.identity import Identity
from psfleet.tls.listeners import is_taken
from psfleet.tls.route import Route
from psfleet.tls.tunnel import Tunnels

SECS = 10.0


def started(reloads: Path) -> list[int]:
    """The process ids of the stubs that have listened, the newest last."""
    return [int(line.split()[1]) for line in (reloads.parent / "pids").read_text().splitlines()]


def test_a_tunnel_of_another_process_is_used_until_it_is_gone(
    reloads: Path, identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    [own] = free_addresses(1)
    way = Route(own.data, "worker-1:2225", "worker", dials=True)
    with Tunnels(identity) as other:
        with Tunnels(identity) as first:
            first.open(way)
            other.open(way)
            other.open(way)
            [pid] = started(reloads)
        wait_until(lambda: is_taken(own.data), SECS, "the other process to take its place")
        assert not Path(f"/proc/{pid}").exists()
        _, newest = started(reloads)
        os.kill(newest, signal.SIGKILL)
        wait_until(lambda: len(started(reloads)) == 3, SECS, "its watcher to restart it")
    assert not is_taken(own.data)
    assert caplog.messages.count(f"{own.data} is a tunnel of another process of this host") == 1


def test_the_tunnel_into_a_process_is_never_that_of_another_one(
    identity: Identity, tunnels: Tunnels, caplog: pytest.LogCaptureFixture
) -> None:
    """The stub fails, as stunnel does, where another socket listens."""
    [own] = free_addresses(1)
    way = Route(own.data, "127.0.0.1:20000", "ps", dials=False)
    tunnels.open(way)
    errors: list[str] = []
    with Tunnels(identity) as other:
        try:
            other.open(way)
        except LostPeerError as error:
            # The stub ended before the first look at the port, on which the other one listens.
            errors.append(str(error))
        failed = f"stunnel for port {own.port} exited with code 1"
        wait_until(lambda: any(failed in text for text in (*errors, caplog.text)), SECS, "an error, or the watcher's")
