"""The sessions of clients on one process of a standing fleet: registered while their client lives, then dropped."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import grpc

import psfleet
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.errors import BadJobError, LostPeerError
from psfleet.job.fleet_access import FleetAccess

logger = logging.getLogger("psfleet.control")

MAX_SESSIONS = 256
"""Sessions of all clients at one time; each occupies a thread of the control plane, which waits for its end."""
JOB = re.compile(r"client_[0-9a-f]{16}")
"""TensorFlow jobs of clients; a client must not have a session of a run dropped."""


class ClientServicer(control_pb2_grpc.FleetControlServicer):
    """Registers sessions, and drops those whose client has ended.

    TensorFlow keeps the sessions of a client that was killed until another one has its name (see `docs/traps.md`).

    Args of the constructor:
        access: Of this fleet.
        drop: Drops the sessions of a TensorFlow job on this process's server.
        meet: With TLS, makes a client, of this index and address, reachable for this process's TensorFlow during a
            session.
    """

    def __init__(
        self,
        access: FleetAccess,
        drop: Callable[[str], None],
        meet: Callable[[int, str], AbstractContextManager[None]] = lambda index, address: nullcontext(),
    ) -> None:
        self._access = access
        self._drop = drop
        self._meet = meet
        self._lock = threading.Lock()
        self._num_sessions = 0

    @property
    def num_sessions(self) -> int:
        """The number of registered sessions."""
        return self._num_sessions

    def Attend(self, request: pb.AttendRequest, context: grpc.ServicerContext) -> Iterator[pb.AttendReply]:
        """See control.proto."""
        if problem := self._problem(request):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return
        if not self._count(1):
            message = f"{MAX_SESSIONS} sessions of clients are open, expected fewer"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        try:
            with self._meet(request.index, request.address):
                try:
                    yield pb.AttendReply()
                    ended.wait()
                finally:
                    self._drop(request.job)
        except BadJobError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except LostPeerError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._count(-1)

    def _problem(self, request: pb.AttendRequest) -> str:
        """Why a session is refused; empty if it is not."""
        if request.version != psfleet.__version__:
            return f"client has psfleet {request.version or 'of no version'}, expected {psfleet.__version__}"
        if request.fleet != self._access.id:
            return f"client knows fleet {request.fleet!r}, expected {self._access.id!r}: it was started again"
        return "" if JOB.fullmatch(request.job) else f"client's job is {request.job!r}, expected one of a client"

    def _count(self, change: int) -> bool:
        """Changes the number of sessions, unless it would exceed the limit; whether it did."""
        with self._lock:
            if self._num_sessions + change > MAX_SESSIONS:
                return False
            self._num_sessions += change
            return True
