"""Interface of the channel from a handle to its run, and what the channels of all platforms share."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psfleet
from psfleet.control import liveness
from psfleet.control import run_control_pb2 as pb
from psfleet.control.run_client import LOOK_SECS
from psfleet.errors import LostPeerError, NoAnswerError, PsfleetError, UsageError
from psfleet.polling import wait_until
from psfleet.report.schema import Report

AGAIN_SECS = 0.2
"""Until a call is repeated while the chief is away: its platform starts it again."""

Request = Callable[[pb.RunCall], Any]
Consume = Callable[[Iterator[Any]], Any]


class AnotherRunError(LostPeerError):
    """The run that a call was made to is over, and another one has its folder or its name."""


@dataclass
class Call:
    """One call to the chief, which can take several attempts.

    Attributes:
        method: Name of a method of RunControl.
        request: Returns the message for a caller, or an iterator of messages; called for each attempt.
        consume: Returns the result of a stream of answers; None: there is one answer.
        caller: Identifies handle and call; the same in each attempt.
        timeout_secs: Deadline of an attempt; None: none.
        start: Identifies the start of the run that the first attempt was made to; None: there was no attempt yet.
        goes_on: Called again and again during the call; ends it by an error.
    """

    method: str
    request: Request
    consume: Consume | None
    caller: pb.RunCall
    timeout_secs: float | None = None
    start: object = None
    goes_on: Callable[[], None] = lambda: None

    def bind(self, start: object) -> None:
        """Binds the call to a start of the run, so that no later attempt reaches another start.

        Raises:
            AnotherRunError: The call is bound to another start.
        """
        if self.start not in (None, start):
            raise AnotherRunError("another one has been started in its place")
        self.start = start

    def made(self) -> Any:
        """The message, or the iterator of messages, for one attempt."""
        return self.request(self.caller)


class Silence:
    """Measures for how long a chief has answered no attempt of one call."""

    def __init__(self) -> None:
        self._since: float | None = None

    def after(self, error: LostPeerError, what: str) -> None:
        """Records the error of an attempt.

        Raises:
            NoAnswerError: The chief is there, and has answered nothing for `ANSWER_SECS`.
        """
        if not isinstance(error, NoAnswerError):
            self._since = None
            return
        now = time.monotonic()
        self._since = now - error.silent_secs if self._since is None else self._since
        if now - self._since >= liveness.ANSWER_SECS:
            raise NoAnswerError(f"{what} is given up, whether it was done is not known: {error}", now - self._since)


@dataclass(frozen=True)
class End:
    """How a run ended: the status of its report, and its last step."""

    status: str
    step: int


class RunChannel(ABC):
    """How a handle reaches a run, on any platform.

    Args of the constructor:
        folder: The run's folder, as the caller sees it.
        where: Names the run in messages.
    """

    def __init__(self, folder: Path, where: str) -> None:
        self.folder = folder
        self.where = where
        self._owner = f"the handle of process {os.getpid()}"

    @abstractmethod
    def is_live(self) -> bool:
        """Whether the run's launcher or its chief is there."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the run is over for good. If no launcher watches the run, this also restarts its members once."""

    @abstractmethod
    def end(self) -> End | None:
        """How a run that is not live ended; None: it left nothing."""

    @abstractmethod
    def logged_step(self) -> int | None:
        """The step that the chief has logged last; None: none."""

    @abstractmethod
    def stop(self) -> None:
        """Asks the run to save and to end; does not wait for it. Raises `UsageError`: the run is not live."""

    @abstractmethod
    def report(self) -> Report:
        """The report of a run that has ended, in its folder.

        Raises:
            UsageError: It has left none.
        """

    def look(self) -> pb.RunView | None:
        """The state of a live run; None: its chief cannot be reached at present.

        Raises:
            NoAnswerError: The chief is there and does not answer.
        """
        try:
            found: pb.RunView = self._attempt(Call("Look", lambda caller: caller, None, self._caller(), LOOK_SECS))
            return found
        except NoAnswerError:
            raise
        except PsfleetError:
            return None

    def call(
        self,
        method: str,
        request: Request,
        consume: Consume | None = None,
        goes_on: Callable[[], None] = lambda: None,
    ) -> Any:
        """Calls the chief, again whenever it is lost, until it answers or the run ends.

        Args:
            method, request, consume, goes_on: See `Call`.

        Raises:
            UsageError: The run is not live, or the chief refuses the call; nothing has changed.
            NoAnswerError: The chief has answered nothing for `ANSWER_SECS`; it may do the call yet.
            LostPeerError: The run has ended during the call.
        """
        self._require_live()
        call, silence = Call(method, request, consume, self._caller(), goes_on=goes_on), Silence()

        def attempt() -> list[Any]:
            try:
                goes_on()
                return [self._attempt(call)]
            except AnotherRunError as error:
                raise LostPeerError(
                    f"{self.where}: the run has ended before `{method.lower()}` was done, and {error}"
                ) from error
            except LostPeerError as error:
                if self.has_ended():
                    raise LostPeerError(f"{self.where}: {self._ended()}, before `{method.lower()}` was done") from error
                silence.after(error, f"{self.where}: `{method.lower()}`")
                return []

        return wait_until(attempt, float("inf"), method, poll_secs=AGAIN_SECS)[0]

    @abstractmethod
    def _attempt(self, call: Call) -> Any:
        """Makes one attempt of a call: enters the run's id into its caller, and binds it to this start of the run.

        Raises:
            UsageError: The chief refuses the call.
            AnotherRunError: The call is bound to another run.
            NoAnswerError: The chief does not answer.
            LostPeerError: It is lost, or has not started yet.
        """

    def _require_live(self) -> None:
        if not self.is_live():
            raise UsageError(f"{self.where}: {self._ended()}; expected a run that trains")

    def _ended(self) -> str:
        """How the run ended, for a message."""
        end = self.end()
        return "no run is live here" if end is None else f"the run is {end.status} at step {end.step}"

    def _caller(self) -> pb.RunCall:
        return pb.RunCall(version=psfleet.__version__, call=secrets.token_hex(8), owner=self._owner)
