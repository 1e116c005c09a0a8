"""A loader from its start to the end of its run: a dispatcher and a worker of tf.data service in one process."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import grpc
import tensorflow as tf

import psfleet
from psfleet.addresses import LOOPBACK, Address
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.credentials import read_identity
from psfleet.control.server import serving
from psfleet.errors import BadJobError, DeadlineError, LostPeerError
from psfleet.service.metrics import BUILD_INFO, Reading, Readings
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.gpus import hide_gpus
from psfleet.tf.loopback import on_loopback
from psfleet.tls.data_plane import check_loopback
from psfleet.tls.listeners import process_listens_on_loopback_alone
from psfleet.tls.loader_plane import LoaderPlane, loader_plane

logger = logging.getLogger("psfleet.loader")

LOOK_SECS = 0.1
"""How often a loader looks whether it is to stop."""


def serve(settings: Settings, stop: Stop) -> int:
    """Serves data sets until the run is over or a signal comes; the run's exit code.

    Raises:
        BadJobError: The job or the run's name is missing; with TLS, the certificate or stunnel is.
        LostPeerError: A port is taken.
        DeadlineError: No worker called for the job's `deadlines.stall_secs`.
        StoppedError: A signal came first.
    """
    if settings.job is None or not settings.run:
        raise BadJobError("PSFLEET_JOB and PSFLEET_RUN are missing, expected both")
    identity = read_identity(settings.tls, "loader")
    hide_gpus()
    servicer = LoaderServicer(settings.run, settings.cause)
    with loader_plane(settings, identity) as plane:
        servers = data_service(plane)
        with (
            serving(settings.address, servicer, identity, stop.event, stop.probes.note_answer, is_watched=True),
            exposing(settings, lambda: _metrics(settings)),
        ):
            logger.info("loader is ready at %s", settings.address.data, extra={"event": "starting"})
            while not servicer.finished.wait(LOOK_SECS):
                if stop.event.is_set():
                    raise stop.error()
                servicer.require_caller(settings.job.deadlines.stall_secs)
        del servers
    return servicer.exit_code


def _metrics(settings: Settings) -> Iterator[Readings]:
    yield Readings(settings.run, "loader", settings.index, [Reading(BUILD_INFO, 1, (psfleet.__version__,))])


def data_service(plane: LoaderPlane) -> tuple[object, ...]:
    """The servers of tf.data service: they stop when they are garbage collected. Who reaches them can run code.

    The dispatcher forgets its data sets when it dies. A client then gets an error, instead of the first batches again.

    Raises:
        BadJobError: Other machines could reach a port that must be closed.
        LostPeerError: A port is in use.
    """
    service = tf.data.experimental.service
    at, batches = plane.dispatcher, plane.batches
    try:
        with _bound(at):
            dispatcher = service.DispatchServer(service.DispatcherConfig(port=at.port))
        with _bound(batches):
            worker = service.WorkerServer(
                service.WorkerConfig(
                    # Its own dispatcher is reached on loopback in any case.
                    dispatcher_address=f"{at.loopback_host or LOOPBACK}:{at.port}",
                    worker_address=f"{batches.host}:%port%",
                    port=batches.port,
                )
            )
    except (tf.errors.OpError, RuntimeError) as error:
        ports = f"port {at.port} or {batches.port}" if batches.port else f"port {at.port}"
        raise LostPeerError(f"{ports} of {at.host} is in use, expected a free one") from error
    for port in (at.port, int(worker._address.rpartition(":")[2])):
        if plane.requires_closed:
            check_loopback(port)
        elif at.loopback_host and not process_listens_on_loopback_alone(port):
            logger.warning(
                "port %d is open on all interfaces, expected loopback: hosts that reach it can run code", port
            )
    return dispatcher, worker


def _bound(address: Address) -> AbstractContextManager[None]:
    """In whose block TensorFlow listens on loopback only if the address is of it."""
    host = address.loopback_host
    return on_loopback(address.port, host) if host else nullcontext()


class LoaderServicer(control_pb2_grpc.ShardControlServicer):
    """The control plane of a loader: the chief looks at its process, and a worker ends it with the run.

    Args of the constructor:
        run: The run's id.
        cause: Why this process was restarted; empty at its first start.

    Attributes:
        finished: Set once the run is over.
        exit_code: That of the run.
    """

    def __init__(self, run: str, cause: str = "") -> None:
        self.finished = threading.Event()
        self.exit_code = 0
        self._run = run
        # Monotonic, in seconds. None: no worker has begun yet, however long that takes, as after the first start.
        self._called: float | None = time.monotonic() if cause else None
        self._state = pb.ShardState(run=run, process=secrets.token_hex(8), cause=cause)

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        self._called = time.monotonic()
        return self._state

    def require_caller(self, secs: float) -> None:
        """Checks that the chief has called in the last seconds: a loader that missed the run's end would never end.

        Raises:
            DeadlineError: It has not.
        """
        if self._called is not None and time.monotonic() - self._called > secs:
            raise DeadlineError("a call of the chief", secs)

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        if request.caller.run != self._run:
            text = f"this loader belongs to run {self._run}, not to {request.caller.run!r}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        self.exit_code = request.outcome.exit_code
        self.finished.set()
        return pb.ShardState(run=self._run, outcome=request.outcome)
