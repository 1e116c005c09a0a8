"""The front of a service: REST, gRPC and metrics until it is stopped; then it answers the queries that it has."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack

from psfleet.addresses import Address
from psfleet.control.credentials import read_identity
from psfleet.errors import BadJobError
from psfleet.inference.access import read_access
from psfleet.inference.batches import Batcher
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.metrics import ServiceMetrics
from psfleet.inference.rest import serving_rest
from psfleet.inference.service import ModelService
from psfleet.job.service_access import IN_GRAPH, FrontOptions, ServiceAccess
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.server import boot
from psfleet.tls.service_plane import ROLE as ROLE_OF_ALL
from psfleet.tls.service_plane import front_plane
from worker_service.front.graph_route import GraphRoute
from worker_service.front.members import Members
from worker_service.trial.signs_of_life import SignsOfLife

logger = logging.getLogger("psfleet.front")

ROLE = "front"
PROBE_SECS = 1.0
"""Interval of signs of life to members, and of looks who answers again."""
LOOP_SECS = 30.0
"""Until the event loop, which has something to do in each interval, has done anything."""
MAX_WAIT = 2.0
"""Timeouts that a query may wait before it is sent to members; the batches in flight before it end within one."""
DRAIN_SECS = 10.0
"""How long queries that were asked before the end may take."""


def serve(settings: Settings, stop: Stop) -> int:
    """Answers queries until a signal comes; returns the exit code.

    Raises:
        BadJobError: This process belongs to no service, or a member does not fit the others.
        LostPeerError: A port is in use.
        StoppedError: A signal came.
    """
    access = settings.service
    if access is None or access.options is None:
        raise BadJobError("PSFLEET_SERVICE is missing, expected access of a front to a service as JSON")
    life = SignsOfLife.of_service(settings.out, ROLE, settings.index)
    life.start()
    metrics = ServiceMetrics(access.name)
    identity = read_identity(settings.tls, ROLE_OF_ALL)
    with front_plane(settings, access.members, identity) as plane, exposing(settings, metrics.read):
        # In a container it also has an address in the network of its clients, who must not reach TensorFlow.
        target = boot(plane.own, None, is_on_own_host=True)
        plane.check()
        # Not asyncio.run: it replaces the handling of signals.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_serve(access, access.options, plane.own, target, metrics, life, stop))
    raise stop.error()


async def watch(ensemble: Ensemble, metrics: ServiceMetrics, life: SignsOfLife, stop: Stop) -> None:
    """Has members give signs of life, and the event loop that this runs in, until a signal comes."""
    while not stop.event.is_set():
        life.begin("the event loop", LOOP_SECS)
        ensemble.probe(asyncio.get_running_loop().time())
        metrics.num_ready = ensemble.num_ready
        await asyncio.sleep(PROBE_SECS)


async def _serve(
    access: ServiceAccess,
    options: FrontOptions,
    own: Address,
    target: str,
    metrics: ServiceMetrics,
    life: SignsOfLife,
    stop: Stop,
) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    conditions = read_access(options)
    ensemble = Ensemble(access.name, access.num_models, options.timeout_secs, access.replicas)
    max_wait_secs = MAX_WAIT * options.timeout_secs
    batcher = Batcher(
        ensemble.ask, options.max_batch_rows, options.linger_secs, loop.time, max_wait_secs, access.replicas
    )
    service = ModelService(access.name, ensemble, batcher, metrics, options.max_query_bytes)

    def fail(error: BaseException) -> None:
        if not ended.done():
            ended.set_exception(error)

    def check(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(error)

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def stopped() -> None:
        stop.event.wait()
        loop.call_soon_threadsafe(end)

    tasks = [loop.create_task(watch(ensemble, metrics, life, stop))]
    route = None
    if access.mode == IN_GRAPH:
        ensemble.route = route = GraphRoute(target, own, ensemble, options.timeout_secs)
        tasks.append(loop.create_task(route.keep()))
    for task in tasks:
        task.add_done_callback(check)
    Members(target, ensemble, route, fail).start()
    waiting = loop.run_in_executor(None, stopped)
    async with AsyncExitStack() as servers:
        await servers.enter_async_context(serving_rest(service, options.host, options.rest_port, conditions))
        await servers.enter_async_context(serving_grpc(service, options.host, options.grpc_port, conditions))
        text = "listens on %s, REST %d, gRPC %d"
        extra = {"event": "listening", "pid": os.getpid()}
        logger.info(text, options.host, options.rest_port, options.grpc_port, extra=extra)
        await asyncio.shield(ended)
        await service.drain(DRAIN_SECS)
    for task in tasks:
        task.cancel()
    await waiting
