"""Calls the control planes of all parameter servers of a run."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import grpc

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import DONE, BadJobError, DeadlineError, LostPeerError, NoAnswerError, PsfleetError, ReplacedError
from psfleet.polling import wait_until

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.control")

FINISH_SECS = 3.0
"""Retry window for Finish; longer if a ps was restarted, and says when it knows again who may end the run. A ps that
misses it waits for workers until its own deadline."""
AGAIN_SECS = 1.0
"""For further attempts once such a ps knows that."""
LOADERS_SECS = 1.0
"""For an answer of the loaders, all at once: one may be frozen."""
REMOVED_SECS = 60.0
"""A loader that is away for so long was removed by `psfleet scale`."""
RELEASE_SECS = 10.0
"""Retry window for the end of loaders in containers, one of which may be starting again."""


class FleetClient:
    """The control planes of all ps of a run, in their order, and those of its loaders.

    Args of the constructor:
        loaders: Of the loaders, and of those that `psfleet scale` can add.
        num_loaders: Number of those that the run has begun with; None: all.
        role: In the certificates of the ps.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        run: str,
        identity: Identity | None = None,
        loaders: Sequence[Address] = (),
        num_loaders: int | None = None,
        role: str = "ps",
    ) -> None:
        self.ps = [PsClient(address, run, identity, role) for address in addresses]
        self._loaders = [PsClient(address, run, identity, "loader") for address in loaders]
        self._num_loaders = len(loaders) if num_loaders is None else num_loaders
        # By loader that was not reached when it was asked last: since when.
        self._away: dict[int, float] = {}
        self.identity = identity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for client in (*self.ps, *self._loaders):
            client.close()

    def identify(self, member: pb.Member) -> None:
        """Makes all further calls those of a member of the run."""
        for client in (*self.ps, *self._loaders):
            client.identify(member)

    def describe(self) -> list[pb.ShardState | None]:
        """The state of each ps; None where it cannot be reached."""
        states: list[pb.ShardState | None] = []
        for client in self.ps:
            try:
                states.append(client.describe())
            except LostPeerError:
                states.append(None)
        return states

    def finish(self, outcome: pb.Outcome) -> int:
        """Ends the run on every ps, see `finish_each`, and then the loaders, if it `is_over`."""
        num_informed = finish_each(self.ps, lambda client: client.finish(outcome))
        if is_over(outcome, num_informed):
            self.release_loaders(outcome)
        return num_informed

    def describe_loaders(self) -> list[pb.ShardState | NoAnswerError | None]:
        """Process and cause of the restart of each loader; None where it is not reached."""
        loaders = self._loaders[: self._num_loaders]
        replies = self._call_loaders(lambda client: client.describe(LOADERS_SECS), loaders)
        found = [reply if isinstance(reply, (pb.ShardState, NoAnswerError)) else None for reply in replies]
        for index, state in enumerate(found):
            if state is None:
                self._away.setdefault(index, time.monotonic())
            else:
                self._away.pop(index, None)
        return found

    def find_loaders(self) -> int:
        """The number of loaders that the run has had, with those that were added and answer."""
        for index in range(self._num_loaders, len(self._loaders)):
            try:
                self.loader_process(index)
            except PsfleetError:
                break
            # Another thread may have found more meanwhile.
            self._num_loaders = max(self._num_loaders, index + 1)
        return self._num_loaders

    def loader_process(self, index: int) -> str:
        """The name of the present process of a loader.

        Raises:
            LostPeerError: It does not answer.
        """
        return self._loaders[index].describe(LOADERS_SECS).process

    def report_passes(self, loader: int, passes: Sequence[pb.Pass], step: int) -> None:
        """Sends a loader the passes that this worker has read, at least up to a step.

        Raises:
            PsfleetError: It does not answer, or refuses.
        """
        self._loaders[loader].heartbeat(pb.HeartbeatRequest(passes=passes, step=step), LOADERS_SECS)

    def release_loaders(self, outcome: pb.Outcome) -> None:
        """Ends the loaders. One on loopback that cannot be reached is left to its launcher; one that is away for
        `REMOVED_SECS` is not waited for.

        Calls are repeated only after a run that is done: after a failure several workers make them, and loaders may
        have ended.
        """
        self.find_loaders()
        pending = self._loaders[: self._num_loaders]
        removed_before = time.monotonic() - REMOVED_SECS
        removed = [self._loaders[index] for index, since in list(self._away.items()) if since < removed_before]

        def release() -> list[str]:
            nonlocal pending
            replies = self._call_loaders(lambda client: client.finish(outcome, LOADERS_SECS), pending)
            found = zip(pending, replies, strict=True)
            pending = [client for client, reply in found if not isinstance(reply, pb.ShardState)]
            awaited = [client for client in pending if not client.address.loopback_host and client not in removed]
            return [client.address.control for client in awaited]

        secs = RELEASE_SECS if outcome.exit_code == DONE else 0.0
        try:
            wait_until(release, secs, "every loader to receive the outcome", done=operator.not_)
        except DeadlineError as error:
            logger.warning("%s", error)

    def _call_loaders(
        self, call: Callable[[PsClient], pb.ShardState], loaders: Sequence[PsClient]
    ) -> list[pb.ShardState | LostPeerError]:
        """Calls loaders at once; the error of each that fails, `NoAnswerError` if it is there."""

        def reply(client: PsClient) -> pb.ShardState | LostPeerError:
            try:
                return call(client)
            except PsfleetError as error:
                logger.debug("a loader does not answer: %s", error)
                cause = error.__cause__
                is_silent = isinstance(cause, grpc.RpcError) and cause.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                return NoAnswerError(str(error), LOADERS_SECS) if is_silent else LostPeerError(str(error))

        with ThreadPoolExecutor(max(1, len(loaders)), "call-loader") as executor:
            return list(executor.map(reply, loaders))


def is_over(outcome: pb.Outcome, num_informed: int) -> bool:
    """Whether no process trains on: a run that has failed continues if no ps knows of it, one that is done does not.

    Args:
        num_informed: Number of ps that have the outcome; those of a run that is done may have ended.
    """
    return outcome.exit_code == DONE or num_informed > 0


def finish_each(ps: Sequence[PsClient], end: Callable[[PsClient], object]) -> int:
    """Ends the run on each ps, with retries for `FINISH_SECS`; returns the number of ps that have the outcome.

    A ps that refuses is not retried; the others still receive the outcome. ps 0 is asked first, and for half of
    that time alone: each process that joins gets its index there, so that it knows of a newer owner of the caller's
    index before any other ps.

    Args:
        end: Ends the run on one ps; called again after a `LostPeerError`.

    Raises:
        ReplacedError: Another process has this worker's index. If no ps has the outcome yet, none receives it, because
            the run continues with that process.
    """
    pending = list(ps)
    decides_at: float | None = None
    asks_all_at = time.monotonic() + FINISH_SECS / 2
    refusals: list[PsfleetError] = []

    def notify() -> list[str]:
        nonlocal decides_at
        for client in list(pending):
            try:
                end(client)
            except LostPeerError as error:
                logger.debug("Finish failed, will be retried: %s", error)
                if error.retry_secs > 0:
                    decides_at = max(decides_at or 0.0, time.monotonic() + error.retry_secs)
                if client is ps[0] and time.monotonic() < asks_all_at:
                    break
                continue
            except ReplacedError as error:
                has_reached_none = len(pending) + len(refusals) == len(ps)
                if has_reached_none:
                    raise
                refusals.append(error)
            except BadJobError as error:
                logger.warning("a ps does not receive the outcome: %s", error)
                refusals.append(error)
            pending.remove(client)
        return [client.address.control for client in pending]

    def await_all(secs: float) -> None:
        wait_until(notify, secs, "every ps to receive the outcome", done=operator.not_)

    try:
        try:
            await_all(FINISH_SECS)
        except DeadlineError:
            if decides_at is None:
                raise
            await_all(max(0.0, decides_at - time.monotonic()) + AGAIN_SECS)
    except DeadlineError as error:
        logger.warning("%s", error)
    for refusal in refusals:
        if isinstance(refusal, ReplacedError):
            raise refusal
    return len(ps) - len(pending) - len(refusals)
