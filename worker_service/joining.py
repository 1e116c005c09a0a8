"""Joins the run: gets a worker index and an incarnation from ps 0, and registers them with the other ps."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.control.fleet_client import FleetClient, finish_each, is_over
from psfleet.errors import LostPeerError, ReplacedError
from psfleet.job.job import Job
from psfleet.job.program_files import digest
from psfleet.polling import wait_until
from psfleet.service.process import Stop
from psfleet.service.settings import Settings

logger = logging.getLogger("psfleet.worker")


@dataclass(frozen=True)
class Membership:
    """This process as a member of the run.

    Attributes:
        member: Its index and incarnation.
        joins: Number of processes that have had the index.
    """

    member: pb.Member
    joins: int


def join(
    fleet: FleetClient, settings: Settings, job: Job, stop: Stop, program: Mapping[str, str] | None = None
) -> Membership:
    """Joins the run; calls of `fleet` are from then on those of a member.

    Args:
        program: The files of the training program (see `psfleet.job.program_files`), and what of the job is common to
            all processes (see `psfleet.job.agreement`).

    Raises:
        BadJobError: Every index is taken, a ps serves another run or version, or the run has another program.
        DeadlineError: Not every ps answered within `deadlines.start_secs`.
        StoppedError: A signal came first. A chief that must save what others have trained tries once.
    """
    process = secrets.token_hex(8)

    def attempt() -> Membership | LostPeerError:
        nonlocal process
        is_stopped = stop.event.is_set()
        if is_stopped and (settings.index != 0 or not stop.must_save()):
            raise stop.error()
        try:
            return _join(fleet, settings, job, process, program or {})
        except ReplacedError as error:
            # Another process got the index between two calls: this one joins anew, under another name.
            process = secrets.token_hex(8)
            failure = LostPeerError(str(error))
        except LostPeerError as error:
            failure = error
        if is_stopped:
            raise stop.error() from failure
        return failure

    number = len(fleet.ps)
    logger.info("waiting for %d parameter server%s", number, "s" if number > 1 else "", extra={"event": "starting"})
    what = f"{number} parameter servers to answer"
    found = wait_until(
        attempt, job.deadlines.start_secs, what, done=lambda reply: isinstance(reply, Membership), poll_secs=0.2
    )
    assert isinstance(found, Membership), "wait_until checked it"
    fleet.identify(found.member)
    return found


def finish_as_chief(fleet: FleetClient, settings: Settings, job: Job, outcome: pb.Outcome) -> int:
    """Joins each ps that answers as the chief, with an incarnation of its own there, and ends the run on it.

    Both calls are repeated together: a ps that knows the chief before refuses the outcome of one that has not joined.

    Returns:
        Number of ps that have the outcome; see `finish_each`.
    """
    process = secrets.token_hex(8)

    def end(client: PsClient) -> None:
        nonlocal process
        try:
            granted = client.join(_request(settings, job, process))
            client.identify(pb.Member(index=granted.index, incarnation=granted.incarnation, process=process))
            client.finish(outcome)
        except ReplacedError as error:
            process = secrets.token_hex(8)
            raise LostPeerError(str(error)) from error

    num_informed = finish_each(fleet.ps, end)
    if is_over(outcome, num_informed):
        fleet.release_loaders(outcome)
    return num_informed


def _request(settings: Settings, job: Job, process: str, program: Mapping[str, str] | None = None) -> pb.JoinRequest:
    files = program or {}
    return pb.JoinRequest(
        index=settings.index,
        worker_limit=job.fleet.worker_limit,
        cause=settings.cause,
        process=process,
        address=settings.address.data,
        program=digest(files),
        program_files=files,
    )


def _join(fleet: FleetClient, settings: Settings, job: Job, process: str, program: Mapping[str, str]) -> Membership:
    first, *others = fleet.ps
    request = _request(settings, job, process, program)
    for client in others:
        request.known.extend(client.describe().workers)
    granted = first.join(request)
    del request.known[:]
    request.index, request.incarnation, request.joins = granted.index, granted.incarnation, granted.joins
    for client in others:
        request.joins = max(request.joins, client.join(request).joins)
    return Membership(pb.Member(index=granted.index, incarnation=granted.incarnation, process=process), request.joins)
