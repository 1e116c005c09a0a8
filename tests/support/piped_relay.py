"""Commands in a container without one: a relay in this process or another one, behind pipes; or what a test scripts."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import grpc

from psfleet.control.frames import Frame
from psfleet.control.relay import Relay
from psfleet.control.relay_client import CommandEnd
from psfleet.errors import LostPeerError

PIECE = 50_000
"""Bytes that are read at once: pieces cut frames."""


class Piped:
    """A command behind two pipes; see `Command`."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self._stdin, self._stdout = stdin, stdout
        self.result = CommandEnd(137, "")

    def send(self, data: bytes) -> None:
        """See `Command`."""
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._stdin, left) :]
        except OSError as error:
            raise LostPeerError(str(error)) from error

    def receive(self, timeout_secs: float) -> bytes | None:
        """See `Command`."""
        if not select.select([self._stdout], [], [], timeout_secs)[0]:
            return b""
        return os.read(self._stdout, PIECE) or None

    def end(self) -> CommandEnd:
        """See `Command`."""
        return self.result


@contextmanager
def relay(to_chief: grpc.Channel) -> Iterator[Piped]:
    """A relay on a thread of this process."""
    (source, stdin), (stdout, target) = os.pipe(), os.pipe()

    def run() -> None:
        with suppress(LostPeerError, OSError):
            Relay(to_chief, source, target).run()
        os.close(target)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Piped(stdin, stdout)
    finally:
        os.close(stdin)
        # All threads that use the pipes: the next relay may have pipes of the same numbers.
        thread.join(20.0)
        own = [each for each in threading.enumerate() if each.name == f"relay-{source}"]
        for each in (thread, *own):
            each.join(20.0)
            assert not each.is_alive(), "the relay did not end with its handle"
        os.close(stdout)
        os.close(source)


@contextmanager
def relay_process(words: Sequence[str]) -> Iterator[tuple[Piped, subprocess.Popen[bytes]]]:
    """A relay in a process of its own, started as in a container."""
    process = subprocess.Popen(
        [sys.executable, *words[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    command = Piped(process.stdin.fileno(), process.stdout.fileno())
    try:
        yield command, process
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(20.0)
        finally:
            process.kill()
            process.stdout.close()
            process.stderr.close()


class Scripted:
    """A command that sends what a test says, and then ends.

    Attributes:
        sent: What it was sent.
    """

    def __init__(self, *pieces: bytes | Frame, code: int | None = 137, text: str = "", refuses: bool = False) -> None:
        self._pieces = [piece.packed() if isinstance(piece, Frame) else piece for piece in pieces]
        self._refuses = refuses
        self.result = CommandEnd(code, text)
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        """See `Command`."""
        if self._refuses:
            raise LostPeerError("the pipe is broken")
        self.sent.append(data)

    def receive(self, timeout_secs: float) -> bytes | None:
        """See `Command`."""
        return self._pieces.pop(0) if self._pieces else None

    def end(self) -> CommandEnd:
        """See `Command`."""
        return self.result
