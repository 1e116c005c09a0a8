"""Calls the chief of a run in containers: through a relay that runs in the chief's container for one call."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf import message_factory
from google.protobuf.message import Message

import psfleet
from psfleet.control import run_control_pb2 as pb
from psfleet.control.frames import Frame, Frames, Kind
from psfleet.control.relay import ALIVE_SECS, SILENT_SECS
from psfleet.control.run_client import POLL_SECS, error_of
from psfleet.errors import BAD_JOB, BUG, USAGE, LostPeerError, PsfleetError, UsageError

logger = logging.getLogger("psfleet.control")

MODULE = "psfleet.control.relay"
ABSENT = ("No module named", "executable file not found", "no such file or directory")
"""In what is printed where the container's image has no relay."""


@dataclass(frozen=True)
class CommandEnd:
    """How a command in a container ended.

    Attributes:
        code: Its exit code; None: not known.
        text: What it printed on stderr, in one line, or what the platform says; empty: nothing.
    """

    code: int | None
    text: str


class Command(Protocol):
    """A command that runs in a container, to be used by one thread.

    Raises (every method):
        LostPeerError: The connection broke.
    """

    def send(self, data: bytes) -> None:
        """Writes to its stdin; waits until the platform takes it."""

    def receive(self, timeout_secs: float) -> bytes | None:
        """What has arrived from its stdout next; empty: nothing in that time; None: it has ended."""

    def end(self) -> CommandEnd:
        """How it ended."""


Opened = Callable[[], AbstractContextManager[Command]]


class RelayClient:
    """The run control of a chief in a container; the counterpart of `RunClient`, whose errors it raises.

    Args of the constructor:
        opened: Starts a relay in the chief's container; the end of the context ends it.
        who: Names the chief in messages.
    """

    def __init__(self, opened: Opened, who: str) -> None:
        self._opened = opened
        self._who = who

    def call(
        self,
        method: str,
        request: Callable[[], Any],
        check: Callable[[], None] = lambda: None,
        timeout_secs: float | None = None,
        consume: Callable[[Iterator[Any]], Any] | None = None,
    ) -> Any:
        """Makes a call; see `RunClient.call`. A method answers once it has read the request, or refuses it."""
        found = request()
        messages: Iterable[Message] = [found] if isinstance(found, Message) else found
        with self._opened() as command:
            answers = _Call(command, self._who, check).answers(method, messages, timeout_secs)
            if consume is not None:
                return consume(answers)
            answer = list(answers)
        if len(answer) != 1:
            raise LostPeerError(f"{self._who}: {len(answer)} answers to {method}, expected one")
        return answer[0]


class _Call:
    """One call through a relay that was started for it."""

    def __init__(self, command: Command, who: str, check: Callable[[], None]) -> None:
        self._command = command
        self._who = who
        self._check = check
        self._frames = Frames()
        self._answers: deque[bytes] = deque()
        # The relay's last frame; None: it has not come.
        self._status: Frame | None = None
        self._sent = self._heard = time.monotonic()
        # Whether nothing can be sent any more.
        self._is_broken = False

    def answers(self, method: str, messages: Iterable[Message], timeout_secs: float | None) -> Iterator[Any]:
        """Sends the messages, and yields the answers as they arrive."""
        service = pb.DESCRIPTOR.services_by_name["RunControl"]
        kind = message_factory.GetMessageClass(service.methods_by_name[method].output_type)
        self._send_all(Frame.of(Kind.CALL, method=method, timeout_secs=timeout_secs), messages)
        while True:
            while self._answers:
                yield kind.FromString(self._answers.popleft())
            if self._status is not None:
                break
            self._receive(POLL_SECS)
            self._look()
        status = self._status.values()
        if status["code"] != "OK":
            raise error_of(self._who, status["code"], status["details"], status.get("silent_secs", 0.0))

    def _send_all(self, first: Frame, messages: Iterable[Message]) -> None:
        """Sends a call, unless it is refused before its end."""
        self._send(first)
        for message in messages:
            self._send(Frame(Kind.MESSAGE, message.SerializeToString()))
            self._receive(0.0)
            self._look()
            if self._status is not None or self._is_broken:
                return
        self._send(Frame(Kind.END))

    def _send(self, frame: Frame) -> None:
        try:
            self._command.send(frame.packed())
            self._sent = time.monotonic()
        except LostPeerError as error:
            # The relay may have ended because the chief has refused the call: what it has sent says that.
            logger.debug("%s: %s", self._who, error)
            self._is_broken = True

    def _receive(self, timeout_secs: float) -> None:
        """Takes what the relay has sent."""
        data = self._command.receive(timeout_secs)
        if data is None:
            self._frames.end()
            raise self._ended(self._command.end())
        for frame in self._frames.take(data):
            self._heard = time.monotonic()
            if frame.kind == Kind.MESSAGE:
                self._answers.append(frame.content)
            elif frame.kind == Kind.STATUS:
                self._status = frame

    def _look(self) -> None:
        """Raises an error if the call must end; otherwise sends a keepalive frame to the relay."""
        if self._status is not None:
            return
        self._check()
        now = time.monotonic()
        if now - self._heard > SILENT_SECS:
            raise LostPeerError(f"{self._who}: its relay has sent nothing for {SILENT_SECS:g} s")
        if now - self._sent > ALIVE_SECS and not self._is_broken:
            self._send(Frame(Kind.ALIVE))

    def _ended(self, end: CommandEnd) -> PsfleetError:
        """The error of a relay that has ended without a status."""
        text = f"{self._who}: its relay has ended ({end.text or f'exit code {end.code}'})"
        if any(mark in end.text for mark in ABSENT):
            return UsageError(f"{text}, expected an image of psfleet {psfleet.__version__}")
        if end.code in (USAGE, BAD_JOB):
            return UsageError(text)
        # Called again, it would fail again.
        return PsfleetError(text) if end.code == BUG else LostPeerError(text)
