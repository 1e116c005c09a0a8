"""The containers of fleets as the Docker engine knows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import docker
from docker.models.containers import Container

from psfleet.errors import PERMANENT_CODES, SIGNAL_BASE, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.launch.compose.render import ROLE, project
from psfleet.launch.follow import TABLE_LINES, newest_table
from psfleet.launch.local.child import parse_line
from psfleet.service import settings

PROJECT = "com.docker.compose.project"
NUMBER = "com.docker.compose.container-number"
WORKING_DIR = "com.docker.compose.project.working_dir"
SERVICE = "com.docker.compose.service"
TRAINING = ("ps", "chief", "worker")
"""Roles without which there is no fleet."""
KILLED = SIGNAL_BASE + 9


@dataclass(frozen=True)
class Member:
    """One container, as it was when it was looked at."""

    container: Container

    @property
    def fleet(self) -> str:
        """The job's name."""
        return str(self.container.labels[PROJECT]).removeprefix(project(""))

    @property
    def role(self) -> str:
        """ps, chief, worker, or that of a service beside the training."""
        return str(self.container.labels[ROLE])

    @property
    def number(self) -> int:
        """A ps's index; among workers, a number of compose's own."""
        if self.role == "ps":
            return int(self.container.labels[SERVICE].rpartition("-")[2])
        return int(self.container.labels[NUMBER])

    @property
    def state(self) -> Mapping[str, Any]:
        """The engine's `State`."""
        return dict(self.container.attrs["State"])

    @property
    def status(self) -> str:
        """created, running, paused, restarting, exited or dead."""
        return str(self.state["Status"])

    @property
    def exit_code(self) -> int:
        """Of its last process; 0 while there was none."""
        return int(self.state["ExitCode"])

    @property
    def is_out_of_memory(self) -> bool:
        """Whether its last process was killed for its memory."""
        return bool(self.state["OOMKilled"])

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in it: a restart after a permanent exit code ends alike."""
        return self.status in ("exited", "dead") or (self.status == "restarting" and self.exit_code in PERMANENT_CODES)

    @property
    def was_killed_by_hand(self) -> bool:
        """Whether it was killed from outside: Docker starts all but such containers again."""
        return self.status == "exited" and self.exit_code == KILLED and not self.is_out_of_memory

    @property
    def restart_count(self) -> int:
        """How often Docker has started it again."""
        return int(self.container.attrs["RestartCount"])

    @property
    def host(self) -> str:
        """Its name on the network, by which workers are known."""
        return str(self.container.attrs["Config"]["Hostname"])

    @property
    def memory_bytes(self) -> int:
        """Its limit."""
        return int(self.container.attrs["HostConfig"]["Memory"])

    def time(self, name: str) -> float:
        """A time that the engine noted (`Created`, `StartedAt`, …), in seconds since 1970."""
        return seconds(self.container.attrs[name] if name == "Created" else self.state[name])

    def job(self) -> Job:
        """The job that it was told."""
        told = dict(pair.split("=", 1) for pair in self.container.attrs["Config"]["Env"])
        return parse_job(json.loads(told[settings.JOB]))

    def entries(self, tail: int | str = "all") -> list[dict[str, Any]]:
        """What it logged as JSON, oldest first."""
        lines = self.container.logs(tail=tail).splitlines()
        return [entry for entry in map(parse_line, lines) if entry is not None]


def members(client: docker.DockerClient, name: str | None) -> list[Member]:
    """The containers of a fleet, or of all fleets: ps, chief, workers, and what is beside them."""
    label = ROLE if name is None else f"{PROJECT}={project(name)}"
    found = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    fleet = [Member(container) for container in found if ROLE in container.labels]
    return sorted(fleet, key=lambda member: (member.fleet, _order(member.role), member.number))


def need(found: list[Member], name: str) -> list[Member]:
    """The members of a fleet.

    Raises:
        UsageError: There are none.
    """
    if not found:
        raise UsageError(f"no fleet {name} is on the Docker engine, expected one that `psfleet up` started")
    return found


def chief(found: Iterable[Member]) -> Member | None:
    """The chief among members."""
    return next((member for member in found if member.role == "chief"), None)


def table_of(leader: Member | None) -> dict[str, Any]:
    """The newest table of the fleet that a chief logged; empty if there is none."""
    return {} if leader is None else newest_table(leader.container.logs(tail=TABLE_LINES).splitlines())


def worker_index(member: Member, table: Mapping[str, Any]) -> int | None:
    """The index that a worker leased; None if it has none yet."""
    if member.role == "chief":
        return 0
    for row in table.get("workers", ()):
        if str(row["address"]).rpartition(":")[0] == member.host:
            return int(row["index"])
    with closing(member.container.logs(stream=True, follow=False)) as chunks:
        entries = (parse_line(line) for line in split(chunks))
        return next((entry["index"] for entry in entries if entry and entry.get("index", -1) >= 0), None)


def split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of a log that comes in chunks; the engine cuts lines at 16 KB."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def seconds(text: str) -> float:
    """A time of the engine, which has nanoseconds, in seconds since 1970."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def _order(role: str) -> int:
    return ("ps", "chief", "worker").index(role) if role in TRAINING else len(TRAINING)
