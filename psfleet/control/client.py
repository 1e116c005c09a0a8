"""Calls the control plane of a parameter server, or of a loader, which has three of its methods."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc

import psfleet
from psfleet.addresses import Address
from psfleet.control import RETRY_SECS, control_pb2_grpc
from psfleet.control import control_pb2 as pb
from psfleet.control.credentials import channel
from psfleet.control.download import Download
from psfleet.errors import BadJobError, LostPeerError, PsfleetError, ReplacedError
from psfleet.layout import Layout

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

CALL_SECS = 5.0
"""Deadline of a call that does not build or write anything."""
REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
)
"""Status codes of calls that are not retried: the ps would refuse them again."""


class PsClient:
    """The control plane of one ps, or of a process of another role, with an identity under mutual TLS.

    Every method raises `LostPeerError` if the ps does not reply in time, `BadJobError` if it refuses, and
    `ReplacedError` if another process has the worker index of this one.
    """

    def __init__(self, address: Address, run: str, identity: Identity | None = None, role: str = "ps") -> None:
        self.address = address
        self._role = role
        self._caller = pb.Caller(run=run, version=psfleet.__version__)
        self._identity = identity
        self._numbers = itertools.count(1)
        self._connect()

    def _connect(self) -> None:
        self._bundle = self._identity.current() if self._identity is not None else None
        self._channel = channel(self.address.control, self._role, self._identity)
        self._stub = control_pb2_grpc.ShardControlStub(self._channel)

    def identify(self, member: pb.Member) -> None:
        """Makes all further calls those of a member of the run: a ps refuses them once it is replaced."""
        self._caller = pb.Caller(run=self._caller.run, version=self._caller.version, member=member)

    def describe(self, timeout_secs: float = CALL_SECS) -> pb.ShardState:
        """The state of the ps for the run, with the counts of gradients."""
        return self._call(self._stub.Describe, pb.DescribeRequest(caller=self._caller), timeout_secs)

    def configure(self, *, timeout_secs: float, **plan: Any) -> pb.ShardState:
        """Builds the ps's shard for a generation, and restores it from a checkpoint.

        Args:
            timeout_secs: Deadline of the call.
            plan: See `_plan`.
        """
        return self._call(self._stub.Configure, self._plan(**plan), timeout_secs)

    def restore(
        self, *, origin: pb.ShardOrigin, ranges: Iterable[tuple[str, int, bytes]], timeout_secs: float, **plan: Any
    ) -> pb.ShardState:
        """As `configure`, but sends what the shard restores: the ps does not read the checkpoint's folder.

        Args:
            origin: The checkpoint.
            ranges: Of the shard's vectors: name, index of the first element, data. Consumed on another thread.
            timeout_secs: Deadline of the call.
            plan: See `_plan`.

        Raises:
            Exception: `ranges` raised it.
        """
        failures: list[Exception] = []

        def requests() -> Iterator[pb.RestoreRequest]:
            digest = hashlib.sha256()
            yield pb.RestoreRequest(configure=self._plan(**plan), origin=origin)
            try:
                for vector, start, data in ranges:
                    digest.update(data)
                    yield pb.RestoreRequest(vector=vector, start=start, data=data)
            except Exception as error:
                # Any error. Without its last message the ps refuses the stream; gRPC would log a traceback here.
                failures.append(error)
            else:
                yield pb.RestoreRequest(sha256=digest.hexdigest())

        try:
            return self._call(self._stub.Restore, requests(), timeout_secs)
        except PsfleetError as error:
            if failures:
                raise failures[0] from error
            raise

    def fetch_part(self, generation: int, step: int) -> Download:
        """The checkpoint part that the ps holds. Iterating it raises what the other methods raise."""
        request = pb.FetchPartRequest(caller=self._caller, generation=generation, step=step)
        try:
            return Download(self._stub.FetchPart(request), self._error)
        except ValueError as error:
            raise self._closed() from error

    def release_part(self, generation: int, step: int, error: str = "") -> None:
        """Lets the ps drop the part that it holds: the chief has written it, or cannot write it because of `error`."""
        request = pb.ReleasePartRequest(caller=self._caller, generation=generation, step=step, error=error)
        self._call(self._stub.ReleasePart, request)

    def _plan(
        self,
        *,
        shard: int,
        generation: int,
        job_json: str,
        layout: Layout,
        checkpoint_folder: str,
        checkpoints_root: str,
        update_json: str = "",
        reductions: Sequence[int] = (),
        hold_at: int | None = None,
        job_digest: str = "",
    ) -> pb.ConfigureRequest:
        """What a ps is to build.

        Args:
            shard: Index of the ps.
            generation: Number of the generation that begins.
            job_json: The resolved job, as `Job.model_dump_json` writes it.
            layout: The layout of the model.
            checkpoint_folder: The checkpoint that the ps reads; empty with `restore`.
            checkpoints_root: The folder in which it writes checkpoints; empty: it holds them for the chief.
            update_json: The program's own optimizer, as `TracedUpdate.to_json` writes it; empty: one of psfleet.
            reductions: The steps from which on the learning rate is reduced.
            hold_at: The step at which training is held; None: it is not.
            job_digest: Of the job before it was resolved; see `psfleet.job.agreement`.
        """
        layout_json = json.dumps(layout.to_dict())
        return pb.ConfigureRequest(
            caller=self._caller,
            shard=shard,
            generation=generation,
            job_json=job_json,
            layout_json=layout_json,
            checkpoint_folder=checkpoint_folder,
            checkpoints_root=checkpoints_root,
            update_json=update_json,
            reductions=reductions,
            hold_at=hold_at,
            job_digest=job_digest,
        )

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Asks for a worker index (-1: any), or registers the one that ps 0 granted. `caller` is filled in."""
        request.caller.CopyFrom(self._caller)
        return self._call(self._stub.Join, request)

    def heartbeat(self, request: pb.HeartbeatRequest, timeout_secs: float = CALL_SECS) -> pb.ShardState:
        """Reports that a worker is alive, or that it leaves. `caller` is filled in."""
        request.caller.CopyFrom(self._caller)
        return self._call(self._stub.Heartbeat, request, timeout_secs)

    def schedule_checkpoint(
        self, generation: int, step: int, stop: bool, signal_number: int = 0
    ) -> pb.ScheduleCheckpointReply:
        """Schedules a checkpoint at a future step, and with `stop` the end of the run there, because of a signal."""
        request = pb.ScheduleCheckpointRequest(
            caller=self._caller, generation=generation, step=step, stop=stop, signal=signal_number
        )
        return self._call(self._stub.ScheduleCheckpoint, request)

    def schedule_reductions(
        self, generation: int, reductions: Sequence[int], pause_at: int | None = None
    ) -> pb.ScheduleReductionsReply:
        """Sets the steps from which on the learning rate is reduced.

        Args:
            pause_at: No update follows this step until the next call; None: a pause ends.
        """
        request = pb.ScheduleReductionsRequest(
            caller=self._caller,
            generation=generation,
            reductions=reductions,
            pause_at=pause_at,
            number=next(self._numbers),
        )
        return self._call(self._stub.ScheduleReductions, request)

    def schedule_hold(self, generation: int, step: int | None) -> pb.ScheduleHoldReply:
        """Sets the step at which training is held; None: it continues."""
        number = next(self._numbers)
        request = pb.ScheduleHoldRequest(caller=self._caller, generation=generation, step=step, number=number)
        return self._call(self._stub.ScheduleHold, request)

    def finish(self, outcome: pb.Outcome, timeout_secs: float = CALL_SECS) -> pb.ShardState:
        """Ends the run with an outcome."""
        return self._call(self._stub.Finish, pb.FinishRequest(caller=self._caller, outcome=outcome), timeout_secs)

    def reset(self) -> bool:
        """Drops everything that the ps holds for the run; returns whether it had a shard."""
        reply: pb.ResetReply = self._call(self._stub.Reset, pb.ResetRequest(caller=self._caller))
        return reply.found

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _call(self, method: Any, request: Any, timeout_secs: float = CALL_SECS) -> Any:
        try:
            return method(request, timeout=timeout_secs)
        except grpc.RpcError as error:
            raise self._error(error) from error
        except ValueError as error:
            raise self._closed() from error

    def _error(self, error: Any) -> PsfleetError:
        """What the end of a call with an error means."""
        details = f"{self._role} at {self.address.control}: {error.details()}"
        if error.code() in REFUSALS:
            return BadJobError(details)
        if error.code() == grpc.StatusCode.ABORTED:
            return ReplacedError(details)
        self._renew()
        return LostPeerError(f"{details} ({error.code().name.lower()})", _retry_secs(error))

    def _closed(self) -> LostPeerError:
        """The meaning of a ValueError, which is gRPC's for a closed channel: another thread has closed this client."""
        return LostPeerError(f"{self._role} at {self.address.control}: the connection is closed")

    def _renew(self) -> None:
        """Reconnects with the new certificate if the one of this channel has been replaced."""
        if self._identity is not None and self._identity.current() is not self._bundle:
            self._channel.close()
            self._connect()


def _retry_secs(error: Any) -> float:
    """When the ps that has failed a call can decide about it, in seconds from now; 0: it does not say so."""
    return next((float(value) for key, value in error.trailing_metadata() or () if key == RETRY_SECS), 0.0)
