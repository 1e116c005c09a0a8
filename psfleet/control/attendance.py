"""Registers a client's session with the processes of a fleet, and notices when one of them goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

import psfleet
from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.credentials import channel
from psfleet.errors import BadJobError, LostPeerError, PsfleetError
from psfleet.service import channel_options

if TYPE_CHECKING:
    # Not loaded without TLS.
    from psfleet.tls.identity import Identity

ANSWER_SECS = 5.0
"""Timeout for a process to answer; one that has died refuses the connection at once."""


@dataclass(frozen=True)
class FleetTask:
    """A process of a standing fleet, and how a client reaches it.

    Attributes:
        address: Of the process.
        tunnel: With TLS, the address of the tunnel to its TensorFlow server, in this process's container; None: it is
            reached at `address`.
    """

    role: str
    index: int
    address: Address
    tunnel: Address | None = None

    @property
    def name(self) -> str:
        """The name in messages: `ps 0`."""
        return f"{self.role} {self.index}"

    @property
    def data(self) -> str:
        """`host:port` at which this process reaches its TensorFlow server."""
        return (self.tunnel or self.address).data


@dataclass(frozen=True)
class SecuredClient:
    """A client of a fleet with TLS.

    Attributes:
        identity: Its credentials.
        index: Which no other client of the fleet has at the same time.
        address: At whose tunnel the fleet reaches it; None: both are on one machine, where no tunnel is needed.
    """

    identity: Identity
    index: int = 0
    address: Address | None = None


class Attendance:
    """One session's registration with all tasks of its ClusterSpec.

    Args of the constructor:
        fleet: Identifier of the fleet's start.
        tasks: The tasks.
        job: TensorFlow job of the client in the session.
        client: With TLS, this client; the tasks open a tunnel to it.
    """

    def __init__(self, fleet: str, tasks: Sequence[FleetTask], job: str, client: SecuredClient | None = None) -> None:
        request = pb.AttendRequest(fleet=fleet, version=psfleet.__version__, job=job)
        if client is not None and client.address is not None:
            request.address, request.index = client.address.data, client.index
        identity = None if client is None else client.identity
        self._has_lost = threading.Event()
        self._registrations = [_Registration(task, request, self._has_lost, identity) for task in tasks]

    def await_tasks(self, timeout_secs: float = ANSWER_SECS) -> None:
        """Waits until each task has registered the session.

        Raises:
            LostPeerError: Tasks do not answer; names them.
            BadJobError: A task refuses: it has another version, or is of another start of the fleet.
        """
        deadline = time.monotonic() + timeout_secs
        found = [each.problem(max(0.0, deadline - time.monotonic())) for each in self._registrations]
        problems = [error for error in found if error is not None]
        if not problems:
            return
        self.close()
        refused = next((error for error in problems if isinstance(error, BadJobError)), None)
        raise refused or LostPeerError("; ".join(map(str, problems)))

    def lost(self, timeout_secs: float = 0.0) -> list[str]:
        """The tasks that have ended the registration, which they do when they die; waits for the first such task."""
        self._has_lost.wait(timeout_secs)
        return [each.task.name for each in self._registrations if each.has_ended]

    def close(self) -> None:
        """Ends the registration: the tasks drop the session."""
        for each in self._registrations:
            each.close()


class _Registration:
    """A session's registration with one task."""

    def __init__(
        self, task: FleetTask, request: pb.AttendRequest, has_lost: threading.Event, identity: Identity | None
    ) -> None:
        self.task = task
        self.has_ended = False
        self._has_lost = has_lost
        self._registered: Future[None] = Future()
        self._channel = channel(task.address.control, task.role, identity, channel_options.ATTENDANCE)
        self._call: Any = control_pb2_grpc.FleetControlStub(self._channel).Attend(request)
        threading.Thread(target=self._follow, name=f"attend-{task.name}", daemon=True).start()

    def problem(self, timeout_secs: float) -> PsfleetError | None:
        """Waits for the registration; why there is none."""
        try:
            self._registered.result(timeout_secs)
        except TimeoutError:
            return LostPeerError(f"{self.task.name} at {self.task.address.data} does not answer")
        except PsfleetError as error:
            return error
        return None

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()

    def _follow(self) -> None:
        """Reads the stream to its end."""
        try:
            for _ in self._call:
                self._registered.set_result(None)
            error: PsfleetError = self._error("it has ended the connection")
        except grpc.RpcError:
            refused = self._call.code() == grpc.StatusCode.FAILED_PRECONDITION
            error = self._error(str(self._call.details()), BadJobError if refused else LostPeerError)
        except ValueError:
            # gRPC's error for a channel that was closed before the first answer.
            error = self._error("the connection is closed")
        self.has_ended = True
        self._has_lost.set()
        with suppress(Exception):
            self._registered.set_exception(error)

    def _error(self, details: str, kind: type[PsfleetError] = LostPeerError) -> PsfleetError:
        return kind(f"{self.task.name} at {self.task.address.data}: {details}")
