"""`python -m psfleet.control.relay PORT [TLS_FOLDER]`: makes one call of RunControl on loopback, for a handle outside.

A handle on a run in containers starts it in the chief's container, through the platform's own way to run a command
there, so that no port is opened for it. The call comes by frames on stdin, its answer leaves by frames on stdout. The
call ends with either of them, and if the handle sends nothing, or takes nothing, for `SILENT_SECS`.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from psfleet.control.credentials import RUN_CONTROL, channel, read_identity
from psfleet.control.frames import Frame, Frames, Kind
from psfleet.control.liveness import ANSWER_SECS, Liveness
from psfleet.errors import LostPeerError, NoAnswerError, PsfleetError

ALIVE_SECS = 5.0
"""Interval of keepalive frames, in both directions."""
SILENT_SECS = 60.0
"""The other side counts as gone if no frame has come from it for so long."""
POLL_SECS = 1.0
READ_BYTES = 1 << 18
MAX_WAITING = 4
"""Number of messages of the handle that wait for the chief; until it takes one, no more are read."""


class Relay:
    """One call.

    Args of the constructor:
        to_chief: The channel to the chief's control plane.
        source, target: File descriptors of the frames of the handle, and of those for it.
    """

    def __init__(self, to_chief: grpc.Channel, source: int, target: int) -> None:
        self._to_chief = to_chief
        self._source, self._target = source, target
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._sending = threading.Lock()
        self._is_cut = False
        self._is_over = threading.Event()
        self._call: Any = None
        self._liveness: Any = None

    def run(self) -> None:
        """Makes the call that the first frame describes, and sends its answer.

        Raises:
            LostPeerError: The frames are not those of a handle, or it has gone.
        """
        frames = self._frames()
        first = next(frames, Frame(Kind.END))
        if first.kind != Kind.CALL:
            raise LostPeerError(f"the handle began with {first.kind.name}, expected {Kind.CALL.name}")
        values = first.values()
        self._liveness = Liveness(self._to_chief, "the chief")
        # Every kind of method is called alike: on the wire, a single message is a stream of one.
        method = self._to_chief.stream_stream(f"/{RUN_CONTROL}/{values['method']}", None, None)
        self._call = method(self._messages(), timeout=values["timeout_secs"])
        for target, arguments in ((self._read, (frames,)), (self._show_life, ()), (self._watch, ())):
            threading.Thread(target=target, args=arguments, name=f"relay-{self._source}", daemon=True).start()
        try:
            for answer in self._call:
                self._send(Frame(Kind.MESSAGE, answer))
            self._send(Frame.of(Kind.STATUS, code=grpc.StatusCode.OK.name, details=""))
        except grpc.RpcError as error:
            self._send_error(self._call.code().name, str(self._call.details() or error))
        finally:
            self._is_over.set()

    def _frames(self) -> Iterator[Frame]:
        """The frames of the handle, until it closes its end or is silent for too long."""
        frames = Frames()
        while select.select([self._source], [], [], SILENT_SECS)[0]:
            data = os.read(self._source, READ_BYTES)
            if not data:
                return
            yield from frames.take(data)

    def _read(self, frames: Iterator[Frame]) -> None:
        """Passes the handle's messages on, and ends the call with the handle."""
        with suppress(LostPeerError, OSError):
            for frame in frames:
                if frame.kind in (Kind.MESSAGE, Kind.END):
                    self._pass(frame.content if frame.kind == Kind.MESSAGE else None)
        self._call.cancel()

    def _messages(self) -> Iterator[bytes]:
        """The messages of the handle, for a thread of gRPC, which asks for the next one when it has sent one."""
        while not self._is_over.is_set():
            with suppress(queue.Empty):
                message = self._waiting.get(timeout=POLL_SECS)
                if message is None:
                    return
                yield message

    def _pass(self, message: bytes | None) -> None:
        while not self._is_over.is_set():
            with suppress(queue.Full):
                return self._waiting.put(message, timeout=POLL_SECS)

    def _show_life(self) -> None:
        while not self._is_over.wait(ALIVE_SECS):
            with suppress(OSError, LostPeerError):
                self._send(Frame(Kind.ALIVE))

    def _watch(self) -> None:
        """Ends the call if the chief answers nothing any more."""
        try:
            while not self._is_over.wait(POLL_SECS):
                self._liveness.check()
        except NoAnswerError:
            self._call.cancel()
        finally:
            self._liveness.close()

    def _send_error(self, code: str, details: str) -> None:
        silent_secs = self._liveness.silent_secs
        if silent_secs >= ANSWER_SECS:
            # This has cancelled it.
            code = grpc.StatusCode.DEADLINE_EXCEEDED.name
        self._send(Frame.of(Kind.STATUS, code=code, details=details, silent_secs=silent_secs))

    def _send(self, frame: Frame) -> None:
        with self._sending:
            if self._is_cut:
                raise LostPeerError("the handle has got only a part of a frame")
            # Until all of it is written: what another thread sent after a part would be taken for the rest.
            self._is_cut = True
            left = memoryview(frame.packed())
            while left:
                # As much as a pipe that can be written to takes at once: a handle that is gone or frozen reads nothing.
                if not select.select([], [self._target], [], SILENT_SECS)[1]:
                    raise LostPeerError(f"the handle has taken nothing for {SILENT_SECS:g} s")
                left = left[os.write(self._target, left[: select.PIPE_BUF]) :]
            self._is_cut = False


def main(port: str, tls: str | None = None) -> int:
    """Relays one call between stdin and stdout; returns the exit code."""
    try:
        identity = read_identity(None if tls is None else Path(tls), "worker")
        # The chief listens on loopback, too, so that the call does not depend on DNS.
        with channel(f"127.0.0.1:{port}", "worker", identity) as to_chief:
            Relay(to_chief, sys.stdin.fileno(), sys.stdout.fileno()).run()
    except (PsfleetError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code if isinstance(error, PsfleetError) else LostPeerError.exit_code
    return 0


if __name__ == "__main__":
    # Threads may be blocked in a call or a read: they end with the process.
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
