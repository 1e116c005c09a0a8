"""A loader from its start to the end of its run: a dispatcher and a worker of tf.data service in one process."""

from __future__ import annotations

import logging
import secrets
import threading

import grpc
import tensorflow as tf

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.gpus import hide_gpus
from psfleet.tf.loopback import on_loopback
from psfleet.tls.listeners import process_listens_on_loopback_alone

logger = logging.getLogger("psfleet.loader")

LOOK_SECS = 0.1
"""How often a loader looks whether it is to stop."""


def serve(settings: Settings, stop: Stop) -> int:
    """Serves data sets until the run is over or a signal comes; the run's exit code.

    Raises:
        BadJobError: The run's name is missing, or the address is not of loopback.
        LostPeerError: A port is taken.
        StoppedError: A signal came first.
    """
    if not settings.run or not settings.address.loopback_host:
        raise BadJobError(f"address is {settings.address.data}, expected PSFLEET_RUN and an address of loopback")
    hide_gpus()
    servers = data_service(settings.address)
    servicer = LoaderServicer(settings.run, settings.cause)
    with serving(settings.address, servicer, None, stop.event, stop.probes.note_answer, is_watched=True):
        logger.info("loader is ready at %s", settings.address.data, extra={"event": "starting"})
        while not servicer.finished.wait(LOOK_SECS):
            if stop.event.is_set():
                raise stop.error()
    del servers
    return servicer.exit_code


def data_service(address: Address) -> tuple[object, ...]:
    """The servers of tf.data service: they stop when they are garbage collected.

    The dispatcher listens on the port of `address`, and its worker on one that the system chooses, both on loopback
    only: who reaches them can run code.

    The dispatcher forgets its data sets when it dies. A client then gets an error, instead of the first batches again.

    Raises:
        LostPeerError: The port is in use.
    """
    service = tf.data.experimental.service
    host = address.loopback_host
    try:
        with on_loopback(address.port, host):
            dispatcher = service.DispatchServer(service.DispatcherConfig(port=address.port))
        with on_loopback(0, host):
            worker = service.WorkerServer(
                service.WorkerConfig(dispatcher_address=f"{host}:{address.port}", worker_address=f"{host}:%port%")
            )
    except tf.errors.OpError as error:
        raise LostPeerError(f"port {address.port} of {address.host} is in use, expected a free one") from error
    for port in (address.port, int(worker._address.rpartition(":")[2])):
        if not process_listens_on_loopback_alone(port):
            logger.warning(
                "port %d is open on all interfaces, expected loopback: hosts that reach it can run code", port
            )
    return dispatcher, worker


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
        self._state = pb.ShardState(run=run, process=secrets.token_hex(8), cause=cause)

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        return self._state

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        if request.caller.run != self._run:
            text = f"this loader belongs to run {self._run}, not to {request.caller.run!r}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        self.exit_code = request.outcome.exit_code
        self.finished.set()
        return pb.ShardState(run=self._run, outcome=request.outcome)
