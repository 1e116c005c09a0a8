"""What a place that runs containers can do with a fleet; docker compose and Kubernetes are two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.report.schema import Report

Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """A run that is wanted.

    Attributes:
        job: What is trained.
        job_file: Its folder is the program's, and mounts are relative to it.
        fresh: Whether what an earlier run of this name left there is deleted first.
    """

    job: Job
    job_file: Path
    fresh: bool = False


@dataclass(frozen=True)
class TaskStatus:
    """One container of a fleet, as `psfleet status` shows it.

    Attributes:
        fleet: The job's name.
        role: ps, chief, worker or spare; tensorboard and the like for what is no part of the training.
        index: Within the role's numbering (ps, or workers with the chief as 0); None where there is none (yet).
        name: Of the container or pod.
        state: As the platform says it: running, exited (70), OOMKilled, ImagePullBackOff, …
        health: healthy, unhealthy, starting, or empty.
        step: Version of its parameters; None: not known (yet).
        rate: Examples per second of this worker, updates per second of a ps; None: not known.
        restarts: How often it was started again.
        last_event: What happened to it last, in one line; empty: nothing.
    """

    fleet: str
    role: str
    index: int | None
    name: str
    state: str
    health: str = ""
    step: int | None = None
    rate: float | None = None
    restarts: int = 0
    last_event: str = ""


class Platform(Protocol):
    """Runs fleets, each under its job's name.

    Raises (every method but `render`, and not the constructor):
        UsageError: The platform cannot be reached or is too old, or it runs no such fleet; says what to do.
    """

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """The fleet as the platform's own tools take it, as YAML; needs no platform.

        Args:
            out: The file that it will be, to whose folder its paths are relative; None: none, they are absolute.
            command: That makes it again, for its first lines.
        """

    def up(self, request: Request) -> None:
        """Starts a fleet; one that runs already is left as it is."""

    def follow(self, name: str, listener: Listener) -> None:
        """Hands every new log entry of the chief to the listener until the run is over, for good or for bad.

        Restarts of the chief are followed through. Safe to leave by KeyboardInterrupt: the run goes on.
        """

    def collect(self, name: str, folder: Path) -> Report:
        """Copies the results of a run that is over (report, checkpoints, TensorBoard, logs) into a folder.

        Returns:
            The chief's report, or one that says why there is none.
        """

    def status(self, name: str | None) -> list[TaskStatus]:
        """Every container of a fleet, or of all fleets."""

    def logs(self, name: str, task: str | None, follow: bool) -> Iterator[str]:
        """Log lines of one task (`ps-0`, `worker-1`, `chief`) or of all; with `follow`, until the fleet ends."""

    def scale(self, name: str, workers: int) -> None:
        """Changes the number of workers and spares together, within `fleet.max_workers`."""

    def down(self, name: str, results: bool) -> None:
        """Ends a fleet and removes all that it made; with `results`, checkpoints and reports there, too."""


def check_scale(job: Job, workers: int) -> None:
    """Checks a number of workers and spares together.

    Raises:
        UsageError: A step could not be made of so few, or there are no slots for so many.
    """
    least = job.quorum if job.update.mode == "sync" else 1
    if not least <= workers <= job.fleet.worker_limit:
        raise UsageError(
            f"--workers {workers}: expected {least} to {job.fleet.worker_limit}, the least that make a step and "
            "fleet.max_workers"
        )


def check_rejoin(request: Request, is_same: bool) -> None:
    """Checks that a run that is wanted is the one that goes on already.

    Args:
        is_same: Whether that one trains the very job.

    Raises:
        UsageError: It trains another version of the job, or a fresh one is wanted.
    """
    name = request.job.name
    if request.fresh:
        raise UsageError(f"--fresh: fleet {name} runs, expected one that was ended by `psfleet down {name}`")
    if not is_same:
        raise UsageError(f"fleet {name} runs with another version of the job: end it by `psfleet down {name}` first")
