"""Workers that are containers: their platform starts them, again if they end, and each process joins the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from psfleet import errors
from psfleet.addresses import Address
from psfleet.control import driver_control_pb2_grpc, server
from psfleet.control.call_relay import CallRelay
from psfleet.control.credentials import STUDY_STORAGE
from psfleet.control.driver_client import INDEX_KEY, PROCESS_KEY
from psfleet.control.driver_servicer import DriverServicer, Readable, Writable
from psfleet.control.worker_registry import WorkerRegistry, is_process
from psfleet.errors import PsfleetError, ReplacedError
from psfleet.launch.platform import KILLED

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.driver")

RELEASE_SECS = 5.0
"""How long a driver whose work is done waits for its workers to hear of it."""
JOIN_SECS = 30.0
"""How long it waits if some are not there: a worker that starts joins once it has imported TensorFlow."""
STORAGE_SECS = 60.0
"""Deadline of a call of a study's storage."""


class ContainerWorker:
    """See `Worker`.

    Args of the constructor:
        registry: Of all workers.
        index: Of this one.
    """

    def __init__(self, registry: WorkerRegistry, index: int) -> None:
        self.index = index
        self._registry = registry
        self._process, self._ended = "", ""
        self._was_killed = False

    def start(self, cause: str = "") -> None:
        """See `Worker`. The next process that joins is the new one, or one that has joined since the last one ended."""
        # One that has failed is in the registry until another one joins.
        self._ended = self._process or self._ended
        self._process, self._was_killed = "", False

    def is_there(self) -> bool:
        """See `Worker`."""
        if not self._process:
            joined = self._registry.joined(self.index)
            self._process = "" if joined is None or joined.process == self._ended else joined.process
        return bool(self._process)

    def exit_code(self) -> int | None:
        """See `Worker`. That of a process whose container has ended is not known: it counts as killed."""
        if not self.is_there():
            return None
        failure = self._registry.failure(self._process)
        if failure is not None:
            return failure.exit_code
        return KILLED if self._was_killed or self.newest_sign() is None else None

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        failure = self._registry.failure(self._process)
        return vars(failure) if failure is not None and failure.message else None

    def cause_of_end(self) -> str:
        """See `Worker`."""
        failure = self._registry.failure(self._process)
        if failure is not None:
            code = errors.cause_of_end(failure.exit_code)
            return f"{failure.message} ({code})" if failure.message else code or "it ended"
        return "it was given up" if self._was_killed else "another process has taken its place"

    def newest_sign(self) -> object:
        """See `Worker`; None: another process has joined."""
        joined = self._registry.joined(self.index)
        return joined.signs if joined is not None and joined.process == self._process else None

    def kill(self) -> None:
        """See `Worker`. The process ends when it is refused."""
        if self._process:
            self._registry.remove(self.index, self._process)
            self._was_killed = True

    def close(self) -> None:
        """See `Worker`. The process hears of it by its next sign of life."""


@contextmanager
def container_workers(
    address: Address,
    run: str,
    number: int,
    identity: Identity | None,
    readable: Readable,
    writable: Writable,
    storage: str = "",
) -> Iterator[Sequence[ContainerWorker]]:
    """Context manager for the workers of a driver, whose control plane they call; they end when the block has ended.

    After a temporary error they wait for the driver's next process.

    Args:
        address: The driver listens on its control port.
        run: The name of what is driven.
        number: Of workers.
        readable, writable: See `DriverServicer`.
        storage: Path of the Unix socket of a study's storage; empty: there is none.

    Raises:
        LostPeerError: The port is in use.
    """
    registry = WorkerRegistry(number)
    servicer = DriverServicer(run, registry, readable, writable)

    def require(context: grpc.ServicerContext) -> None:
        caller = dict(context.invocation_metadata())
        index, process = str(caller.get(INDEX_KEY, "")), str(caller.get(PROCESS_KEY, ""))
        if not index.isdecimal() or not is_process(process):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call does not say which worker makes it")
        try:
            registry.require(int(index), process)
        except (IndexError, ReplacedError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def add(to: grpc.Server) -> None:
        driver_control_pb2_grpc.add_DriverControlServicer_to_server(servicer, to)
        if storage:
            # A worker that prunes reads all trials of the study at once, with the job of each.
            target = grpc.insecure_channel(f"unix:{storage}", options=[("grpc.max_receive_message_length", -1)])
            to.add_generic_rpc_handlers((CallRelay(STUDY_STORAGE, target, STORAGE_SECS, require),))

    with server.serving(address, identity=identity, add=add, threads=server.THREADS + 2 * number):
        logger.info("listening at %s", address.control, extra={"event": "listening"})
        try:
            yield [ContainerWorker(registry, index) for index in range(number)]
        except PsfleetError as error:
            if error.exit_code in errors.PERMANENT_CODES:
                _release(servicer, registry, error.exit_code)
            raise
        _release(servicer, registry, errors.DONE)


def _release(servicer: DriverServicer, registry: WorkerRegistry, exit_code: int) -> None:
    """Lets the workers end, and waits until they know.

    One that joined after the driver's end would wait for another driver for `deadlines.start_secs`.
    """
    servicer.exit_code = exit_code
    pause, began = threading.Event(), time.monotonic()
    while not registry.are_released():
        if time.monotonic() - began > (RELEASE_SECS if registry.are_there() else JOIN_SECS):
            break
        pause.wait(0.05)
