"""A loader from its start to the end of its run: a dispatcher and a worker of tf.data service in one process."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import grpc
import tensorflow as tf

import psfleet
from psfleet.addresses import LOOPBACK, Address
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.credentials import read_identity
from psfleet.control.server import serving
from psfleet.control.watchers import Watchers
from psfleet.errors import BadJobError, DeadlineError, LostPeerError
from psfleet.job.sections import Deadlines
from psfleet.service.metrics import BUILD_INFO, Reading, Readings
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.gpus import hide_gpus
from psfleet.tf.loopback import bound_to
from psfleet.tls.data_plane import check_loopback
from psfleet.tls.listeners import process_listens_on_loopback_alone
from psfleet.tls.loader_plane import LoaderPlane, loader_plane
from worker_service.build_deadline import DEADLINES
from worker_service.loader.definitions import Definitions
from worker_service.loader.readers import Readers

logger = logging.getLogger("psfleet.loader")

LOOK_SECS = 0.1
"""How often a loader looks whether it is to stop."""


def serve(settings: Settings, stop: Stop) -> int:
    """Serves data sets until the run is over or a signal comes; the run's exit code.

    Raises:
        BadJobError: The job or the run's name is missing; with TLS, the certificate or stunnel is.
        LostPeerError: A port is taken.
        DeadlineError: No worker called in time, see `LoaderServicer.require_caller`.
        StoppedError: A signal came first.
    """
    if settings.job is None or not settings.run:
        raise BadJobError("PSFLEET_JOB and PSFLEET_RUN are missing, expected both")
    identity = read_identity(settings.tls, "loader")
    hide_gpus()
    servicer = LoaderServicer(settings.run, settings.cause)
    with loader_plane(settings, identity) as plane, Definitions() as definitions:
        is_dynamic = settings.job.input.is_dynamic
        servers = data_service(plane, is_dynamic, definitions.folder)
        with (
            serving(
                settings.address, servicer, identity, stop.event, stop.probes.note_answer, watchers=servicer.watchers
            ),
            exposing(settings, lambda: _metrics(settings)),
        ):
            logger.info("loader is ready at %s", settings.address.data, extra={"event": "starting"})
            while not servicer.finished.wait(LOOK_SECS):
                if stop.event.is_set():
                    raise stop.error()
                servicer.require_caller(settings.job.deadlines)
                if not is_dynamic:
                    # With dynamic sharding a data set is sent once, and workers read it as one, at any time.
                    definitions.remove_read()
        del servers
    return servicer.exit_code


def _metrics(settings: Settings) -> Iterator[Readings]:
    yield Readings(settings.run, "loader", settings.index, [Reading(BUILD_INFO, 1, (psfleet.__version__,))])


def data_service(plane: LoaderPlane, keeps_jobs: bool = False, definitions: Path | None = None) -> tuple[object, ...]:
    """The servers of tf.data service: they stop when they are garbage collected. Who reaches them can run code.

    The dispatcher forgets its data sets when it dies. A client then gets an error, instead of the first batches again.

    Args:
        plane: Where they listen.
        keeps_jobs: Whether a job without clients is kept: it would otherwise begin again after 5 minutes.
        definitions: Folder for the data sets that the dispatcher has; None: they are in memory.

    Raises:
        BadJobError: Other machines could reach a port that must be closed.
        LostPeerError: A port is in use.
    """
    service = tf.data.experimental.service
    at, batches = plane.dispatcher, plane.batches
    try:
        with _bound(at):
            config = service.DispatcherConfig(
                port=at.port,
                work_dir=str(definitions) if definitions else None,
                job_gc_timeout_ms=-1 if keeps_jobs else None,
            )
            dispatcher = service.DispatchServer(config)
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
    return bound_to(address.port, host) if host else nullcontext()


class LoaderServicer(control_pb2_grpc.ShardControlServicer):
    """The control plane of a loader: the chief looks at its process, workers watch it, and one ends it with the run.

    Args of the constructor:
        run: The run's id.
        cause: Why this process was restarted; empty at its first start.
        clock: Monotonic, in seconds.

    Attributes:
        finished: Set once the run is over.
        exit_code: That of the run.
        watchers: The workers that read from this loader.
    """

    def __init__(self, run: str, cause: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.finished = threading.Event()
        self.exit_code = 0
        self.watchers = Watchers()
        self._run = run
        self._clock = clock
        self._called = clock()
        # Whether the chief may have called a process of this loader.
        self._was_called = bool(cause)
        self._state = pb.ShardState(run=run, process=secrets.token_hex(8), cause=cause)
        self._readers = Readers(clock)

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        self._note_call()
        state = pb.ShardState(readers=self._readers.states())
        state.MergeFrom(self._state)
        return state

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        self._check_run(request.caller, context)
        self._note_call()
        self._readers.note(request)
        return self._state

    def require_caller(self, deadlines: Deadlines) -> None:
        """Checks that the chief has called lately, or that a worker reads: one that missed the run's end would not end.

        The first call comes once the chief has found all ps and has built the model. Workers train without a chief
        until another process replaces it.

        Raises:
            DeadlineError: No call has come in time.
        """
        if self.watchers.number:
            self._note_call()
        secs = deadlines.stall_secs if self._was_called else deadlines.start_secs + DEADLINES * deadlines.first_secs
        if self._clock() - self._called > secs:
            raise DeadlineError("a call of the chief or of a worker", secs)

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        self._check_run(request.caller, context)
        self.exit_code = request.outcome.exit_code
        self.finished.set()
        return pb.ShardState(run=self._run, outcome=request.outcome)

    def _check_run(self, caller: pb.Caller, context: grpc.ServicerContext) -> None:
        if caller.run != self._run:
            text = f"this loader belongs to run {self._run}, not to {caller.run!r}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    def _note_call(self) -> None:
        self._called, self._was_called = self._clock(), True
