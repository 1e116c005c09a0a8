"""Calls the chief of a live run, or another worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from psfleet.control import run_control_pb2_grpc
from psfleet.control.credentials import channel
from psfleet.control.liveness import UNANSWERED_SECS, Liveness, no_answer
from psfleet.errors import LostPeerError, PsfleetError, UsageError

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

LOOK_SECS = 5.0
"""Deadline of a call that does not wait for the fleet."""
REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Status codes of calls that the chief has refused: nothing has changed, and it would refuse them again."""
SILENT = (grpc.StatusCode.UNAVAILABLE.name, grpc.StatusCode.DEADLINE_EXCEEDED.name)
"""Status codes that a call without an answer can have; calls that failed otherwise can have them, too."""
EXCEPTION = "Exception "
"""Begins the details of a call whose method raised; the status is UNKNOWN, as that of some lost connections."""
POLL_SECS = 0.2


class RunClient:
    """The run control of one chief.

    Args of the constructor:
        target: `host:port` of the chief's control plane.
        stub: Of another service.
        identity: TLS credentials; None: the connection is plain.
        who: What is there, for messages.
    """

    def __init__(
        self,
        target: str,
        stub: Any = run_control_pb2_grpc.RunControlStub,
        identity: Identity | None = None,
        who: str = "chief (worker 0)",
    ) -> None:
        self._who = f"the {who} at {target}"
        self._channel = channel(target, "worker", identity)
        self._stub = stub(self._channel)

    def call(
        self,
        method: str,
        request: Callable[[], Any],
        check: Callable[[], None] = lambda: None,
        timeout_secs: float | None = None,
        consume: Callable[[Iterator[Any]], Any] | None = None,
    ) -> Any:
        """Makes a call, which may take as long as the run does.

        Args:
            method: Of RunControl.
            request: Returns the message, or an iterator of messages.
            check: Called again and again while the call runs; ends it by an error.
            timeout_secs: Deadline; None: none, `check` decides.
            consume: Returns the result of a stream of answers; called on another thread. None: there is one answer.

        Raises:
            UsageError: The chief refuses the call, and has changed nothing.
            PsfleetError: It has a bug.
            LostPeerError: It is lost, or has not answered in time; it may have done what it was asked for.
            NoAnswerError: It answers nothing, not even whether it is there.
        """
        called = getattr(self._stub, method)
        liveness = Liveness(self._channel, self._who)

        def checked() -> None:
            check()
            liveness.check()

        try:
            if consume is not None:
                return self._consumed(called(request(), timeout=timeout_secs), consume, checked)
            return self._awaited(called.future(request(), timeout=timeout_secs), checked)
        except grpc.RpcError as error:
            found: Any = error
            raise error_of(self._who, found.code().name, found.details(), liveness.silent_secs) from error
        finally:
            liveness.close()

    def _awaited(self, pending: Any, check: Callable[[], None]) -> Any:
        try:
            while not pending.done():
                check()
                # Not a pause: `result` returns as soon as the call is done. Its error is raised below.
                with suppress(grpc.FutureTimeoutError, grpc.RpcError):
                    pending.result(timeout=POLL_SECS)
            return pending.result()
        finally:
            pending.cancel()

    def _consumed(self, answers: Any, consume: Callable[[Iterator[Any]], Any], check: Callable[[], None]) -> Any:
        with ThreadPoolExecutor(1, "answers") as pool:
            result = pool.submit(consume, answers)
            try:
                while not wait([result], POLL_SECS).done:
                    check()
                return result.result()
            finally:
                answers.cancel()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def error_of(who: str, code: str, details: str, silent_secs: float) -> PsfleetError:
    """What the status of a call means.

    Args:
        who: Was called.
        code: Name of a status code of gRPC.
        silent_secs: Since the last answer to anything, see `Liveness`.
    """
    if code in SILENT and silent_secs >= UNANSWERED_SECS:
        return no_answer(who, silent_secs)
    if code in {refusal.name for refusal in REFUSALS}:
        return UsageError(details)
    if code == grpc.StatusCode.UNKNOWN.name and details.startswith(EXCEPTION):
        # Called again, it would fail again.
        return PsfleetError(f"{who} has a bug, see its log: {details}")
    return LostPeerError(f"{who}: {details} ({code.lower()})")
