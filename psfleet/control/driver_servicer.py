"""The control plane of a driver whose workers are containers: signs of life, files, and the storage of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

import psfleet
from psfleet.control import driver_control_pb2 as pb
from psfleet.control import driver_control_pb2_grpc
from psfleet.control.file_stream import receive, sending
from psfleet.control.prompt_stream import prompt, promptly_taken
from psfleet.control.worker_registry import Failure, WorkerRegistry, is_process
from psfleet.errors import LostPeerError, ReplacedError
from psfleet.files import replaced_file

Readable = Callable[[str], Path | None]
"""Returns the file that a worker may read under a name; None: there is none."""
Writable = Callable[[int, str], Path | None]
"""Returns the file that the worker of an index may write under a name; None: it may not."""


class DriverServicer(driver_control_pb2_grpc.DriverControlServicer):
    """Serves the workers of one driver.

    Args of the constructor:
        run: The name of what is driven.
        registry: Of the workers.
        readable, writable: The files.

    Attributes:
        exit_code: With which workers end that call from now on; None: something is left to do.
    """

    def __init__(self, run: str, registry: WorkerRegistry, readable: Readable, writable: Writable) -> None:
        self.exit_code: int | None = None
        self._run = run
        self._registry = registry
        self._readable = readable
        self._writable = writable

    def Beat(self, request: pb.DriverCall, context: grpc.ServicerContext) -> pb.BeatReply:
        """See driver_control.proto."""
        self._check(request, context)
        with _refusals(context):
            self._registry.beat(request.index, request.process)
        if self.exit_code is None:
            return pb.BeatReply()
        self._registry.release(request.process)
        return pb.BeatReply(over=True, exit_code=self.exit_code)

    def Fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[pb.FileMessage]:
        """See driver_control.proto."""
        self._require(request.caller, context)
        path = self._readable(request.name)
        if path is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"the driver has no file {request.name!r}")
        assert path is not None, "abort() raises"
        if not path.is_file():
            # A run has deleted its checkpoint: the driver finds another one when it is started again.
            context.abort(grpc.StatusCode.ABORTED, f"the file {request.name!r} of the driver was deleted meanwhile")
        yield from promptly_taken(sending(path), context.cancel)

    def Deliver(self, messages: Iterator[pb.FileMessage], context: grpc.ServicerContext) -> pb.DeliverReply:
        """See driver_control.proto."""
        messages = prompt(messages, context.cancel)
        head = next(messages, pb.FileMessage())
        self._require(head.caller, context)
        path = self._writable(head.caller.index, head.name)
        if path is None:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"file {head.name!r}: expected one that worker {head.caller.index} may write",
            )
        assert path is not None, "abort() raises"
        try:
            with _refusals(context), replaced_file(path, head.caller.process) as file:
                receive(messages, file.write, head.name)
                # One that was frozen, and has been replaced, must not replace the file of its replacement.
                self._registry.require(head.caller.index, head.caller.process)
        except LostPeerError as error:
            context.abort(grpc.StatusCode.ABORTED, str(error))
        except OSError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{path}: {error.strerror or error}")
        return pb.DeliverReply()

    def Fail(self, request: pb.FailRequest, context: grpc.ServicerContext) -> pb.FailReply:
        """See driver_control.proto."""
        self._check(request.caller, context)
        failure = Failure(request.exit_code, request.message, request.details)
        with _refusals(context):
            self._registry.fail(request.caller.index, request.caller.process, failure)
        return pb.FailReply()

    def _require(self, caller: pb.DriverCall, context: grpc.ServicerContext) -> None:
        self._check(caller, context)
        with _refusals(context):
            self._registry.require(caller.index, caller.process)

    def _check(self, caller: pb.DriverCall, context: grpc.ServicerContext) -> None:
        """Refuses callers of another run, another version, or without an index that the driver has."""
        problem = ""
        if caller.run != self._run:
            problem = f"this driver is of {self._run!r}, not of {caller.run!r}"
        elif caller.version != psfleet.__version__:
            problem = f"this driver has psfleet {psfleet.__version__}, worker {caller.index} has {caller.version}"
        elif not 0 <= caller.index < self._registry.size:
            problem = f"worker {caller.index}: expected an index from 0 to {self._registry.size - 1}"
        elif not is_process(caller.process):
            problem = f"worker {caller.index}: process is {caller.process!r}, expected 16 hexadecimal digits"
        if problem:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)


@contextmanager
def _refusals(context: grpc.ServicerContext) -> Iterator[None]:
    """Context manager in which a call of a process that was replaced is refused."""
    try:
        yield
    except ReplacedError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
