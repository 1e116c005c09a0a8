"""Serves gRPC on a control port: health for every role, and the shard control of a ps."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from psfleet.cluster import Address
from psfleet.control import control_pb2_grpc
from psfleet.control.client import CHANNEL_OPTIONS
from psfleet.errors import LostPeerError

THREADS = 16
"""Calls that are answered at the same time; each worker has one heartbeat under way at most."""


@contextmanager
def serving(address: Address, servicer: control_pb2_grpc.ShardControlServicer | None = None) -> Iterator[None]:
    """Serves on the control port of `address` until the block is left.

    Raises:
        LostPeerError: The port is taken.
    """
    options = (*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0))
    server = grpc.server(futures.ThreadPoolExecutor(THREADS, "control"), options=options)
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    if servicer is not None:
        control_pb2_grpc.add_ShardControlServicer_to_server(servicer, server)
    listen_host = "127.0.0.1" if address.host in ("127.0.0.1", "localhost") else "[::]"
    try:
        server.add_insecure_port(f"{listen_host}:{address.port + 1}")
    except RuntimeError as error:
        raise LostPeerError(
            f"control port {address.port + 1} of {address.host} is in use, expected a free one"
        ) from error
    server.start()
    try:
        yield
    finally:
        server.stop(grace=1.0).wait(2.0)
