"""Calls the driver of a study or of a prediction, as one of its workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

import psfleet
from psfleet.addresses import Address
from psfleet.control import driver_control_pb2 as pb
from psfleet.control import driver_control_pb2_grpc
from psfleet.control.call_relay import CallRelay
from psfleet.control.credentials import STUDY_STORAGE, channel
from psfleet.control.file_stream import receive, sending
from psfleet.control.prompt_stream import prompt
from psfleet.errors import BadJobError, LostPeerError, PsfleetError, ReplacedError, StorageError
from psfleet.files import replaced_file

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

BEAT_SECS = 5.0
"""Deadline of a sign of life."""
INDEX_KEY, PROCESS_KEY = "psfleet-worker", "psfleet-process"
"""Metadata of calls that are relayed: who makes them."""


class DriverClient:
    """The driver, for the process of one worker.

    Every method raises `ReplacedError` if another process has the index of this one, `BadJobError` if the driver
    refuses the call, and `LostPeerError` if it does not answer.

    Args of the constructor:
        address: Of the driver; its control plane is called.
        run: The name of what it drives.
        index: Of this worker.
        wait_secs: How long a call waits for the driver.
        process: 16 hexadecimal digits; by default of a new process.
    """

    def __init__(
        self,
        address: Address,
        run: str,
        index: int,
        wait_secs: float,
        identity: Identity | None,
        process: str = "",
    ) -> None:
        self._address = address
        self._wait_secs = wait_secs
        process = process or secrets.token_hex(8)
        self._caller = pb.DriverCall(run=run, version=psfleet.__version__, index=index, process=process)
        self._channel = channel(address.control, "worker", identity)
        self._stub = driver_control_pb2_grpc.DriverControlStub(self._channel)

    def join(self) -> int | None:
        """Waits for the driver, and gives the first sign of life; returns as `beat`."""
        return self._beat(timeout=self._wait_secs, wait_for_ready=True)

    def beat(self) -> int | None:
        """Gives a sign of life.

        Returns:
            The exit code with which this process ends if nothing is left to do, or None. The driver does not wait for
            another call of a process that has got one.
        """
        return self._beat(timeout=BEAT_SECS)

    def fetch(self, name: str, path: Path) -> None:
        """Copies a file of the driver; raises `StorageError` if it cannot be written here."""

        def copy() -> None:
            request = pb.FetchRequest(caller=self._caller, name=name)
            call = self._stub.Fetch(request, wait_for_ready=True)
            with replaced_file(path, self._caller.process) as file:
                receive(prompt(call, call.cancel), file.write, name)

        try:
            self._call(copy)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror or error}") from error

    def deliver(self, name: str, path: Path) -> None:
        """Gives the driver a file; raises `StorageError` if the driver cannot write it."""
        # A stream that the driver does not take ends by the keepalive of its connection, or by its deadline.
        secs = self._wait_secs + path.stat().st_size / 100_000
        self._call(lambda: self._stub.Deliver(_messages(self._caller, name, path), timeout=secs, wait_for_ready=True))

    def fail(self, error: PsfleetError) -> None:
        """Says why this process ends."""
        request = pb.FailRequest(
            caller=self._caller, exit_code=error.exit_code, message=str(error), details=error.details
        )
        self._call(lambda: self._stub.Fail(request, timeout=BEAT_SECS))

    def end(self, exit_code: int) -> None:
        """Says that the process has ended without having said why."""
        request = pb.FailRequest(caller=self._caller, exit_code=exit_code)
        self._call(lambda: self._stub.Fail(request, timeout=BEAT_SECS))

    def relay(self) -> CallRelay:
        """What serves the storage of the driver's study here."""
        metadata = ((INDEX_KEY, str(self._caller.index)), (PROCESS_KEY, self._caller.process))
        return CallRelay(STUDY_STORAGE, self._channel, self._wait_secs, metadata=metadata)

    def _beat(self, **how: Any) -> int | None:
        reply = self._call(lambda: self._stub.Beat(self._caller, **how))
        return int(reply.exit_code) if reply.over else None

    def _call(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except grpc.RpcError as error:
            text = f"the driver at {self._address.control}: {error.details() or error.code().name}"
            match error.code():
                case grpc.StatusCode.FAILED_PRECONDITION:
                    raise ReplacedError(error.details()) from error
                case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.NOT_FOUND | grpc.StatusCode.PERMISSION_DENIED:
                    raise BadJobError(text) from error
                case grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise StorageError(text) from error
            raise LostPeerError(text) from error


def _messages(caller: pb.DriverCall, name: str, path: Path) -> Iterator[pb.FileMessage]:
    yield pb.FileMessage(caller=caller, name=name)
    yield from sending(path)
