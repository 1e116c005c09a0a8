"""The interface of a platform, on which fleets run, and what all platforms have in common: members and their ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from psfleet.control.relay_client import Command
from psfleet.errors import BAD_JOB, DONE, PERMANENT_CODES, SIGNAL_BASE, STOPPED
from psfleet.job.activity import Activity
from psfleet.job.job import Job

COMPOSE, KUBERNETES = "compose", "kubernetes"
KILLED = SIGNAL_BASE + signal.SIGKILL
TRAINING = ("ps", "loader", "chief", "worker")
"""Roles without which there is no fleet."""


@dataclass(frozen=True)
class Request:
    """A run to be started.

    Attributes:
        job: What is trained.
        job_file: Its folder is the program's, and mounts are relative to it.
        fresh: Whether results of an earlier run of this name are deleted first.
        paused: Whether the run is held at the step that it starts from: see `psfleet.start`.
        fleet: The standing fleet of the platform on whose ps it trains; empty: the run has ps of its own.
        activity: What the fleet does instead of training; None: it trains.
        front_files: Files that only the front of a service gets, by name; neither its environment nor its manifest has
            them.
    """

    job: Job
    job_file: Path
    fresh: bool = False
    paused: bool = False
    fleet: str = ""
    activity: Activity | None = None
    front_files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """A container, pod or process of a fleet at one moment.

    Attributes:
        fleet: The job's name.
        role: ps, loader, chief or worker; tensorboard and the like for what is not part of the training.
        index: Of a ps, or of a worker with the chief as 0; None: not known from the platform.
        name: As the platform's own tools know it.
        state: In the platform's words: running, exited (70), OOMKilled, ImagePullBackOff, …
        started: When its present or last process began, in seconds since 1970; 0: there was none.
        created: When this start of the fleet was created, in seconds since 1970.
        exit_code: Exit code of its last process, 128 + n for signal n; None while it runs or before its first.
        cause: Why that process failed, in one line; empty: it did not fail.
        restarts: How often it was started again.
        is_over: Whether it has ended and the platform does not start it again.
        awaits_restart: Whether it is over only because the platform leaves its restart to psfleet.
        health: healthy, unhealthy, starting, or empty.
        problem: Why its process does not start, in one line; empty: there is nothing to say.
        needs_user: Whether the problem persists until a user acts.
        is_held: Whether a queue or a user holds it back, for as long as they want.
        note: What happened to it before, in one line.
        host: Host name of a worker in the chief's table of the fleet, which has the index that the worker leased.
        url: At which its pages are reached from this machine; empty: it has none.
        run: Id by which the processes of the run know it; empty: the job's name.
        activity: The kind of what its fleet does instead of training; empty: it trains.
    """

    fleet: str
    role: str
    index: int | None
    name: str
    state: str
    started: float = 0.0
    created: float = 0.0
    exit_code: int | None = None
    cause: str = ""
    restarts: int = 0
    is_over: bool = False
    awaits_restart: bool = False
    health: str = ""
    problem: str = ""
    needs_user: bool = False
    is_held: bool = False
    note: str = ""
    host: str = ""
    url: str = ""
    run: str = ""
    activity: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether its last process ended neither well nor on request."""
        return self.exit_code is not None and self.exit_code not in (DONE, *STOPPED)

    @property
    def ends_run(self) -> bool:
        """Whether its last process ended with an error that ends the run. Not a worker's 78: only it was refused.

        What the end of a worker with a driver means is decided by the driver.
        """
        is_own = self.role == "worker" and (self.exit_code == BAD_JOB or self.activity != "")
        return self.exit_code in PERMANENT_CODES and not is_own


class WatchedPlatform(Protocol):
    """The part of the interface that follows a fleet and shows its state; `platforms.local` implements only this part.

    Raises (every method):
        UsageError: The platform cannot be reached or is too old, or refuses a request; says what to do.
        LostPeerError: The platform does not answer at the moment.

    Attributes:
        noun: What the platform calls a member: container, pod or process.
        where: Completes the sentence "no fleet X …", for example "is on the Docker engine".
        look_secs: Interval between two calls of `members` while a fleet is followed.
        restart_secs: Pause before psfleet restarts a member.
        settle_secs: How long a chief that was asked to stop must have ended before the run counts as over.
        restarts_stopped: Whether the platform starts a chief again after `stop`.
    """

    noun: str
    look_secs: float
    restart_secs: float
    settle_secs: float
    restarts_stopped: bool

    @property
    def where(self) -> str:
        """See the class."""

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """The members of a fleet, or of all fleets, by fleet, role and index; with `with_notes`, `note` is filled."""

    def restart(self, member: Member) -> None:
        """Starts a member that awaits its restart."""

    def end_restarts(self, members: Sequence[Member]) -> None:
        """Keeps the platform from restarting members that are over: they would end with the same exit code."""

    def stop(self, chief: Member, timeout_secs: float) -> None:
        """Asks the chief to save and end, and waits for its end."""

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Lines of a member's log.

        Args:
            since: Lines before this time (seconds since 1970) may be left out.
            follow: Whether to wait for more until its process ends.
            tail: Only this many of the last lines; None: all.
        """


class Platform(WatchedPlatform, Protocol):
    """Runs fleets in containers, each under its job's name; errors as above, except for `render`."""

    @property
    def location(self) -> str:
        """The engine, or the cluster and namespace: fleets of one name are the same one where this is equal."""

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """The fleet as YAML for the platform's own tools; needs no platform.

        Args:
            out: The file to be written, to whose folder paths are relative; None: paths are absolute.
            command: Renders the same text again; quoted in its first lines.
        """

    def check(self, request: Request) -> None:
        """Refuses what `apply` would refuse, and changes nothing.

        Raises:
            UsageError: The platform lacks something, or the name is that of something else.
            BadJobError: The platform cannot honour a field of the job.
        """

    def apply(self, request: Request) -> None:
        """Replaces the remains of an earlier fleet of this name, and starts all containers."""

    def job(self, name: str) -> Job:
        """The job that a fleet trains."""

    def activity(self, name: str) -> Activity | None:
        """What a fleet does instead of training; None: it trains, or there is no such fleet."""

    def ask_to_stop(self, chief: Member) -> None:
        """Asks the chief to save and end; does not wait. Only where `restarts_stopped` is false."""

    def running(self, chief: Member, command: Sequence[str]) -> AbstractContextManager[Command]:
        """Context manager for a command beside the chief's process, in its container."""

    def has_results(self, name: str) -> bool:
        """Whether there are checkpoints and reports of a fleet, which may be down."""

    def tar(self, job: Job, names: Sequence[str]) -> AbstractContextManager[Iterator[Iterator[bytes]]]:
        """The results of a run as tar archives, each a stream of chunks; may hold more than the files named.

        Args:
            job: Of the run, whose fleet may be down; names the image that reads the results then.
        """

    def scaled_away(self, name: str) -> list[Member]:
        """Former members that `scale` removed, as far as the platform keeps their logs."""

    def scale(self, job: Job, workers: int) -> None:
        """Changes the number of workers and spares together."""

    def scale_loaders(self, job: Job, loaders: int) -> None:
        """Changes the number of loaders; those with the highest indices are removed."""

    def remove(self, name: str, results: bool) -> bool:
        """Removes a fleet, and with `results` its checkpoints and reports; whether there was anything to remove."""


def chief_of(members: Sequence[Member]) -> Member | None:
    """The chief among members."""
    return next((member for member in members if member.role == "chief"), None)


def out_of_memory(limit: str) -> str:
    """The cause of a process's end that exceeded its memory limit."""
    return f"OOMKilled: out of memory, the limit is {limit}"


def gone_for_good(members: Sequence[Member], job: Job) -> Member | None:
    """The member whose failure ends the run; None while the run can continue.

    A permanent exit code ends the run, since it would recur, and so does the loss of a ps or loader. A worker or spare
    whose restarts are used up, or that was refused (78), ends it only if too few are left for a step.
    """
    gone = [m for m in members if m.role in TRAINING and m.is_over and m.has_failed and not may_restart(m, job)]
    workers = [m for m in members if m.role in ("chief", "worker")]
    is_short = sum(m not in gone for m in workers) < job.least_workers
    fatal = (m for m in gone if m.role != "worker" or m.ends_run or is_short)
    return next(fatal, None)


def may_restart(member: Member, job: Job) -> bool:
    """Whether psfleet restarts a member: the platform leaves that to it, and `fleet.max_restarts` is not reached."""
    return member.awaits_restart and member.restarts < job.fleet.max_restarts
