"""Streams of health that many peers open and end at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.control.server import serving
from psfleet.control.watchers import Watchers
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

PEERS, STREAMS = 8, 100


def watch_and_leave(address: Address) -> None:
    with grpc.insecure_channel(address.control) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(STREAMS):
            call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=5.0)
            next(call)
            call.cancel()


def test_a_peer_that_ends_its_stream_while_another_one_begins_its_own_does_not_stop_the_server() -> None:
    """The library calls back on the thread that serves, which must not wait for a reply to be sent."""
    (address,) = free_addresses(1)
    watchers = Watchers()
    with serving(address, watchers=watchers):
        with ThreadPoolExecutor(PEERS) as executor:
            list(executor.map(watch_and_leave, PEERS * [address]))
        wait_until(lambda: watchers.number == 0, 10.0, "the server to count no stream")
