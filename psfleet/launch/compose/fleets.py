"""Runs fleets with docker compose: the plugin creates the containers, the engine's API does all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path

import docker
from docker.errors import NotFound

from psfleet.errors import DONE, PERMANENT_CODES, UsageError
from psfleet.launch import container
from psfleet.launch.compose import engine
from psfleet.launch.compose.members import (
    PROJECT,
    TRAINING,
    WORKING_DIR,
    Member,
    chief,
    members,
    need,
    split,
    table_of,
    worker_index,
)
from psfleet.launch.compose.render import file_text, project
from psfleet.launch.compose.results import collect
from psfleet.launch.compose.status import statuses
from psfleet.launch.compose.tls import prepare
from psfleet.launch.compose.watch import Watch
from psfleet.launch.follow import merged
from psfleet.launch.platform import Listener, Request, TaskStatus, check_rejoin, check_scale
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.run_folder import claimed

STARTS_AT_ONCE = 16
START_TRIES = 3
"""An engine that has much to do fails now and then to publish a port or to join a network."""
RESTART_SECS = 120.0
"""Docker waits for a minute at most before it starts a container again."""
STOP_SECS = 10
"""How long a container may take to end once the chief has."""


class Compose:
    """A `Platform` on a Docker engine; each fleet is a compose project."""

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """See `Platform`."""
        folder = out.parent if out is not None else None
        return file_text(request.job, request.job_file, folder, command)

    @engine.talking()
    def up(self, request: Request) -> None:
        """See `Platform`. A fleet that has ended and was not collected yet is left, too."""
        job = request.job
        found = members(self._client, job.name)
        if _is_there(found, request):
            return
        engine.need_plugin()
        engine.need_images(self._client, [job.container.ps_image, job.container.worker_image])
        _need_readable(request)
        self._remove(job.name, found, results=request.fresh)
        prepare(job)
        text = file_text(job, request.job_file, None, "psfleet up")
        home = str(request.job_file.resolve().parent)
        engine.compose(project(job.name), text, "--project-directory", home, "up", "--no-start")
        self._start(job.name)

    @engine.talking()
    def follow(self, name: str, listener: Listener) -> None:
        """See `Platform`."""
        Watch(self._client, name, listener).run()

    @engine.talking()
    def collect(self, name: str, folder: Path) -> Report:
        """See `Platform`."""
        found = need(members(self._client, name), name)
        leader = chief(found)
        if leader is None:
            raise UsageError(f"fleet {name} has no chief, whose results could be copied")
        job = leader.job()
        with claimed(folder, job, fresh=False) as run_folder:
            return collect(found, leader, job, run_folder)

    @engine.talking()
    def status(self, name: str | None) -> list[TaskStatus]:
        """See `Platform`."""
        found = members(self._client, name)
        return statuses(self._client, found if name is None else need(found, name))

    def logs(self, name: str, task: str | None, follow: bool) -> Iterator[str]:
        """See `Platform`. With all tasks, each line begins with the task's."""
        found = need(members(self._client, name), name)
        table = table_of(chief(found))
        tasks = {_task(member, table): member for member in found if member.role in TRAINING}
        tasks |= {"worker-0": tasks["chief"]} if "chief" in tasks and task == "worker-0" else {}
        if task is not None and task not in tasks:
            raise UsageError(f"fleet {name} has no {task}, expected one of {', '.join(sorted(tasks))}")
        if task is not None:
            yield from (line.decode(errors="replace") for line in _lines(tasks[task], follow))
            return
        logs = [_named_lines(name, member, follow) for name, member in tasks.items()]
        yield from merged(logs) if follow else chain.from_iterable(logs)

    @engine.talking()
    def scale(self, name: str, workers: int) -> None:
        """See `Platform`."""
        found = need(members(self._client, name), name)
        leader = chief(found)
        if leader is None or leader.is_over:
            raise UsageError(f"fleet {name} does not run, expected one that trains")
        job = leader.job()
        check_scale(job, workers)
        engine.need_plugin()
        home = Path(leader.container.labels[WORKING_DIR])
        text = file_text(job, home / "job.yaml", None, "psfleet scale")
        arguments = ["up", "-d", "--no-recreate", "--no-deps", "--scale", f"worker={workers - 1}", "worker"]
        engine.compose(project(name), text, "--project-directory", str(home), *arguments)

    @engine.talking()
    def down(self, name: str, results: bool) -> None:
        """See `Platform`. The chief is stopped first, while the others are there: it saves what they have made."""
        found = members(self._client, name)
        if not found and not (results and self._volumes(name)):
            need(found, name)
        leader = chief(found)
        if leader is not None and leader.status == "running":
            leader.container.stop(timeout=int(leader.job().deadlines.stop_secs))
        self._remove(name, found, results)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def _start(self, name: str) -> None:
        """Starts all containers at once, which compose would not: they wait for each other by themselves."""
        found = left = members(self._client, name)
        for _ in range(START_TRIES):
            with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
                calls = [(member, pool.submit(member.container.start)) for member in left]
            failed = {member: error for member, call in calls if (error := call.exception()) is not None}
            left = list(failed)
            if not left:
                return
        self._remove(name, found, results=False)
        error = failed[left[0]]
        raise UsageError(f"container {left[0].container.name} does not start: {error}") from error

    def _remove(self, name: str, found: list[Member], results: bool) -> None:
        """Removes containers and networks, and with `results` the volume."""
        with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
            for call in [pool.submit(_end, member) for member in found]:
                call.result()
        label = {"label": f"{PROJECT}={project(name)}"}
        for network in self._client.networks.list(filters=label):
            network.remove()
        for volume in self._volumes(name) if results else ():
            volume.remove()

    def _volumes(self, name: str) -> list[docker.models.volumes.Volume]:
        return list(self._client.volumes.list(filters={"label": f"{PROJECT}={project(name)}"}))


def _is_there(found: list[Member], request: Request) -> bool:
    """Whether a fleet trains this job, or has ended for good and waits for its results to be fetched.

    Raises:
        UsageError: One trains, but another version of the job; or a fresh one is wanted.
    """
    leader = chief(found)
    if leader is None:
        return False
    is_same = leader.job() == request.job
    if leader.is_over:
        return is_same and not request.fresh and leader.exit_code in {DONE, *PERMANENT_CODES}
    if leader.status == "created":
        return False
    check_rejoin(request, is_same)
    return True


def _need_readable(request: Request) -> None:
    """Checks that the containers' user can read a program that is mounted."""
    if request.job.container.program != "mount":
        return
    home = request.job_file.resolve().parent
    wanted = [(home, 0o5), *[(path, 0o4) for path in home.glob("*.py")]]
    for path, mode in wanted:
        if path.stat().st_mode & mode != mode:
            raise UsageError(
                f"{path} cannot be read by user {container.USER}, as which containers run: `chmod -R o+rX {home}`"
            )


def _end(member: Member) -> None:
    """Stops a container and removes it."""
    try:
        if not member.is_over:
            member.container.stop(timeout=STOP_SECS)
        member.container.remove(force=True, v=True)
    except NotFound:
        return


def _task(member: Member, table: dict[str, object]) -> str:
    """The name of a container's task: ps-0, chief, worker-1."""
    if member.role == "worker":
        index = worker_index(member, table)
        return f"worker-{index}" if index is not None else f"worker-without-index-{member.number}"
    return f"ps-{member.number}" if member.role == "ps" else member.role


def _lines(member: Member, follow: bool) -> Iterator[bytes]:
    """A container's log; with `follow` over its restarts, to its end."""
    yield from split(member.container.logs(stream=True, follow=follow))
    while follow and _is_started_again(member):
        yield from split(member.container.logs(stream=True, follow=True, since=member.time("StartedAt")))


def _is_started_again(member: Member) -> bool:
    """Waits for what Docker does with a container whose process has ended."""

    def look() -> str:
        try:
            member.container.reload()
        except NotFound:
            return "exited"
        return "exited" if member.is_over else member.status

    return wait_until(look, RESTART_SECS, "a restart", done=("exited", "running").__contains__) == "running"


def _named_lines(name: str, member: Member, follow: bool) -> Iterator[str]:
    """A container's log with its task's name before each line; one that is followed says why it ends too early."""
    try:
        for line in _lines(member, follow):
            yield f"{name} | {line.decode(errors='replace')}"
    except engine.ERRORS as error:
        if not follow:
            raise
        yield f"{name} | the log ends: {error}"
