"""Runs fleets with docker compose: the plugin creates the containers, the engine's API does everything else."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path

import docker
from docker.errors import NotFound
from docker.models.containers import Container
from docker.models.volumes import Volume

from psfleet.errors import UsageError
from psfleet.job.activity import Activity
from psfleet.job.job import Job, job_from_json
from psfleet.launch.log_reader import lines_of
from psfleet.launch.platform import Member, Request
from psfleet.manifests import container
from psfleet.manifests.compose.render import ROLE, file_text, project
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.activities import activity_of
from psfleet.platforms.compose.containers import (
    PROJECT,
    RESTARTING,
    archives,
    end_container,
    environment_of,
    member_of,
    memory_kills,
    place_of,
    require_run,
    start_containers,
)
from psfleet.platforms.compose.engine import translate_errors
from psfleet.platforms.compose.exec import ContainerCommand, running
from psfleet.platforms.compose.fleet_labels import ensure_certificates, renew_certificates
from psfleet.platforms.compose.put_files import put_files
from psfleet.platforms.compose.requests import require_startable, text_of
from psfleet.platforms.compose.scaling import scale_loaders, scale_workers
from psfleet.platforms.compose.volume_reader import remove_readers, volume_reader
from psfleet.platforms.standing.fleet_folder import one_command
from psfleet.service import settings

STOP_SECS = 10
"""How long a container may take to end once the chief has."""
NUM_THREADS = 16
"""Number of containers that are started, or ended, at the same time."""


class Compose:
    """A `Platform` on a Docker engine; each fleet is a compose project."""

    noun = "container"
    where = "is on the Docker engine"
    look_secs = 1.0
    restart_secs = 0.0
    settle_secs = 15.0
    restarts_stopped = False

    def __init__(self) -> None:
        # By container id: the restarts by psfleet, which the engine does not count.
        self._starts: Counter[str] = Counter()

    @cached_property
    @translate_errors()
    def location(self) -> str:
        """See `Platform`."""
        return str(self._client.info()["ID"])

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """See `Platform`."""
        folder = out.parent if out is not None else None
        return file_text(request.job, request.job_file, folder, command)

    @translate_errors()
    def check(self, request: Request) -> None:
        """See `Platform`."""
        name = request.job.name
        require_startable(self._client, request, self._containers(name), self._volumes(name))

    @translate_errors()
    def apply(self, request: Request) -> None:
        """See `Platform`. No command of this user starts or ends a standing fleet of this name meanwhile."""
        job = request.job
        with one_command(job.name):
            self.check(request)
            if job.tls and request.fleet:
                renew_certificates(request.fleet)
            elif job.tls:
                ensure_certificates(job.name)
            self.remove(job.name, results=request.fresh)
            engine.compose(project(job.name), text_of(request), request.job_file.parent.resolve(), "up", "--no-start")
            put_files(self._chief(job.name), container.FRONT_FILES, request.front_files)
            self._start(job.name)

    @translate_errors()
    def job(self, name: str) -> Job:
        """See `Platform`."""
        chief = self._chief(name)
        return job_from_json(environment_of(chief).get(settings.JOB, ""), f"container {chief.name}: {settings.JOB}")

    @translate_errors()
    def activity(self, name: str) -> Activity | None:
        """See `Platform`."""
        chief = self._found_chief(name)
        return None if chief is None else activity_of(chief)

    @translate_errors()
    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `Platform`."""
        killed = memory_kills(self._client) if with_notes else {}
        members = (member_of(each, self._starts[each.id], killed.get(each.id)) for each in self._containers(name))
        return sorted(members, key=place_of)

    @translate_errors()
    def restart(self, member: Member) -> None:
        """See `Platform`."""
        docker_container = self._client.containers.get(member.name)
        self._starts[docker_container.id] += 1
        docker_container.start()

    @translate_errors()
    def end_restarts(self, members: Sequence[Member]) -> None:
        """See `Platform`. Docker restarts a container whatever its exit code."""
        for member in members:
            if member.is_over and member.state.startswith(RESTARTING):
                self._client.containers.get(member.name).update(restart_policy={"Name": "no"})

    @translate_errors()
    def ask_to_stop(self, chief: Member) -> None:
        """See `Platform`. The engine does not start a container again that was signalled through it."""
        self._client.containers.get(chief.name).kill(signal.SIGTERM)

    def running(self, chief: Member, command: Sequence[str]) -> AbstractContextManager[ContainerCommand]:
        """See `Platform`."""
        return running(self._client, chief.name, command)

    @translate_errors()
    def stop(self, chief: Member, timeout_secs: float) -> None:
        """See `Platform`."""
        self._client.containers.get(chief.name).stop(timeout=int(timeout_secs))

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`."""
        with translate_errors():
            container = self._client.containers.get(member.name)
            # The engine refuses 0 as a time.
            yield from lines_of(
                container.logs(stream=True, follow=follow, since=since or None, tail="all" if tail is None else tail)
            )

    @translate_errors()
    def has_results(self, name: str) -> bool:
        """See `Platform`."""
        return bool(self._volumes(name))

    @contextmanager
    def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
        """See `Platform`. The engine reads the volume of an ended container, too."""
        with translate_errors(), self._reader(job) as reader:
            yield archives(reader, [f"{container.OUT}/{name}" for name in names])

    def scaled_away(self, name: str) -> list[Member]:
        """See `Platform`. Docker removes the log of a container with the container."""
        return []

    @translate_errors()
    def scale(self, job: Job, workers: int) -> None:
        """See `Platform`."""
        scale_workers(job, self._chief(job.name), workers)

    @translate_errors()
    def scale_loaders(self, job: Job, loaders: int) -> None:
        """See `Platform`."""
        scale_loaders(job, self._chief(job.name), self._containers(job.name), loaders)

    @translate_errors()
    def remove(self, name: str, results: bool) -> bool:
        """See `Platform`."""
        label = {"label": f"{PROJECT}={project(name)}"}
        containers = self._containers(name)
        require_run(name, containers)
        volumes = self._volumes(name) if results else []
        remove_readers(self._client, name)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for call in [pool.submit(end_container, each, STOP_SECS) for each in containers]:
                call.result()
        for resource in [*self._client.networks.list(filters=label), *volumes]:
            # Another command that follows the fleet may have removed it.
            with suppress(NotFound):
                resource.remove()
        return bool(containers or volumes)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def _containers(self, name: str | None) -> list[Container]:
        """The containers of a fleet, or of all fleets."""
        label = ROLE if name is None else f"{PROJECT}={project(name)}"
        containers = self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        return [each for each in containers if ROLE in each.labels]

    def _volumes(self, name: str) -> list[Volume]:
        """The volume of a fleet's results, in a list; empty if there is none."""
        return list(self._client.volumes.list(filters={"label": f"{PROJECT}={project(name)}"}))

    @contextmanager
    def _reader(self, job: Job) -> Iterator[Container]:
        """The chief, or for a fleet that is down a container of its own."""
        chief, volumes = self._found_chief(job.name), self._volumes(job.name)
        if chief is not None or not volumes:
            yield chief or self._chief(job.name)
            return
        with volume_reader(self._client, job, volumes[0]) as reader:
            yield reader

    def _found_chief(self, name: str) -> Container | None:
        return next((each for each in self._containers(name) if each.labels[ROLE] == "chief"), None)

    def _chief(self, name: str) -> Container:
        chief = self._found_chief(name)
        if chief is None:
            raise UsageError(f"fleet {name} has no chief on the Docker engine, expected one that `psfleet up` started")
        return chief

    def _start(self, name: str) -> None:
        others = [each for each in self._containers(name) if each.labels[ROLE] != "chief"]
        try:
            start_containers(others, NUM_THREADS)
            # Last: a start that was interrupted is known by a chief that was only created, and made anew.
            start_containers([self._chief(name)], NUM_THREADS)
        except UsageError:
            self.remove(name, results=False)
            raise
