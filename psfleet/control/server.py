"""Serves gRPC on a control port: health for every role, the shard control of a ps, the run control of a chief."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.control import control_pb2_grpc, run_control_pb2_grpc
from psfleet.control.clients import MAX_SESSIONS, ClientServicer
from psfleet.control.credentials import CHANNEL_OPTIONS, RoleGuard, add_port
from psfleet.control.watchers import Watchers
from psfleet.errors import LostPeerError
from psfleet.service import channel_options

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

THREADS = 16
"""Number of concurrent calls; each worker has at most one pending heartbeat."""
WATCHED_SECS = 5.0
"""How long a process that peers watch waits for them to end first: workers hear of a run's end by a heartbeat."""


@contextmanager
def serving(
    address: Address,
    servicer: control_pb2_grpc.ShardControlServicer | None = None,
    identity: Identity | None = None,
    stopping: threading.Event | None = None,
    answered: Callable[[], None] = lambda: None,
    clients: ClientServicer | None = None,
    run_control: run_control_pb2_grpc.RunControlServicer | None = None,
    worker_control: run_control_pb2_grpc.WorkerControlServicer | None = None,
    watchers: Watchers | None = None,
    add: Callable[[grpc.Server], object] = lambda server: None,
    threads: int = THREADS,
) -> Iterator[None]:
    """Serves on the control port of `address` until the context is left; with an identity, with mutual TLS.

    Health is SERVING at once, whatever the state of the peers, until `stopping` is set or the context is left.

    Args:
        answered: Called after each health check to which this process answers that it is SERVING.
        clients: Of a process of a standing fleet.
        watchers: Counts the peers that watch the health of this process for as long as the run lasts. Unless
            `stopping` is set, it serves them until they end, for `WATCHED_SECS` at most. None: no peer does.
        add: Adds further services to the server.
        threads: Number of concurrent calls, sessions of clients apart.

    Raises:
        LostPeerError: The port is in use.
    """
    attendance = channel_options.ATTENDANCE if watchers is not None or clients is not None else ()
    options = (*CHANNEL_OPTIONS, *attendance, ("grpc.so_reuseport", 0))
    num_threads = threads + (MAX_SESSIONS if clients is not None else 0)
    guards = () if identity is None else (RoleGuard(),)
    server = grpc.server(futures.ThreadPoolExecutor(num_threads, "control"), interceptors=guards, options=options)
    checks = _Health(answered, watchers)
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    _add(servicer, control_pb2_grpc.add_ShardControlServicer_to_server, server)
    _add(clients, control_pb2_grpc.add_FleetControlServicer_to_server, server)
    _add(run_control, run_control_pb2_grpc.add_RunControlServicer_to_server, server)
    _add(worker_control, run_control_pb2_grpc.add_WorkerControlServicer_to_server, server)
    add(server)
    listen_host = "127.0.0.1" if address.is_loopback else "[::]"
    try:
        add_port(server, f"{listen_host}:{address.control_port}", identity)
    except RuntimeError as error:
        raise LostPeerError(
            f"control port {address.control_port} of {address.host} is in use, expected a free one"
        ) from error
    server.start()
    if stopping is not None:
        threading.Thread(target=_end_health, args=(checks, stopping), name="health", daemon=True).start()
    try:
        yield
    finally:
        if watchers is not None and not (stopping is not None and stopping.is_set()):
            # New calls are refused; the streams of health stay open.
            server.stop(grace=WATCHED_SECS).wait(WATCHED_SECS)
        checks.enter_graceful_shutdown()
        server.stop(grace=1.0).wait(2.0)


def _add(servicer: object | None, register: Callable[[Any, grpc.Server], object], server: grpc.Server) -> None:
    if servicer is not None:
        register(servicer, server)


class _Health(health.HealthServicer):
    """The standard health service; counts an answer only while its client still waits for it."""

    def __init__(self, answered: Callable[[], None], watchers: Watchers | None) -> None:
        super().__init__()
        self._answered = answered
        self._watchers = watchers

    def Check(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext) -> Any:
        """See `grpc.health.v1`."""
        reply = super().Check(request, context)
        if context.is_active() and reply.status == health_pb2.HealthCheckResponse.SERVING:
            self._answered()
        return reply

    def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext, *callback: Any) -> Any:
        """See `grpc.health.v1`; gRPC gives a function that sends a reply, too."""
        if self._watchers is not None:
            self._watchers.add(context)
        return super().Watch(request, _Stream(context), *callback)


class _Stream:
    """The call of a stream of health, as far as `HealthServicer` needs it; its end is handled on a thread of its own.

    gRPC calls back on the one thread that serves. `HealthServicer` would wait there for the lock that it holds while
    that thread is to send the first reply of another stream, and the server would never answer again.
    """

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """See `grpc.RpcContext`."""
        ended = threading.Thread(target=callback, name="health-stream", daemon=True)
        if not self._context.add_callback(ended.start):
            # It has ended already.
            ended.start()
        return True


def _end_health(checks: health.HealthServicer, stopping: threading.Event) -> None:
    """Reports NOT_SERVING once the process was asked to stop: clients choose another one while this one saves."""
    stopping.wait()
    checks.enter_graceful_shutdown()
