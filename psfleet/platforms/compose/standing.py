"""Fleets that stand on a Docker engine: each is a compose project, and its clients are containers on its network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import docker
from docker.errors import APIError
from docker.models.containers import Container
from docker.types import Mount

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.platform import Member
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.client import CLIENT, client_options
from psfleet.manifests.compose.on_fleet import ON_FLEET
from psfleet.manifests.compose.render import ROLE, project
from psfleet.manifests.compose.standing import STANDING, file_text
from psfleet.manifests.container import PROGRAM, TLS
from psfleet.platforms.compose import client, engine
from psfleet.platforms.compose.containers import (
    CONFLICT,
    PROJECT,
    end_container,
    require_readable,
)
from psfleet.platforms.compose.engine import translate_errors
from psfleet.platforms.compose.fleet_labels import (
    access_of,
    ensure_certificates,
    file_of,
    new_access,
    renew_certificates,
    require_same,
    stop_secs,
)
from psfleet.platforms.compose.platform import NUM_THREADS, Compose
from psfleet.platforms.compose.serving import has_failed, not_serving
from psfleet.platforms.standing.fleet_folder import one_command
from psfleet.polling import wait_until

POLL_SECS = 0.5
REMOVE_SECS = 30.0
"""How long the engine may take to remove a container that has ended."""
MAX_CLIENTS = 1000


class ComposeFleets:
    """A `StandingPlatform` on a Docker engine."""

    look_secs = Compose.look_secs
    where = Compose.where

    def __init__(self) -> None:
        self._shown = Compose()

    @translate_errors()
    def up(self, file: FleetFile) -> FleetAccess:
        """See `StandingPlatform`."""
        engine.require_plugin()
        engine.require_images(self._client, [file.container.ps_image, file.container.worker_image])
        with one_command(file.name):
            found = self._processes(file.name)
            require_same(file, found)
            self._require_no_run(file.name)
            if file.tls:
                renew_certificates(file.name) if found else ensure_certificates(file.name)
            access = access_of(found[0]) if found else new_access(file)
            try:
                return self._started(file, access)
            except BaseException:
                # Ctrl-C, too: nothing is left behind that was not up.
                if not found:
                    self._remove(file.name)
                raise

    @translate_errors()
    def down(self, name: str) -> None:
        """See `StandingPlatform`."""
        with one_command(name):
            self._find(name)
            self._require_no_run_on(name)
            self._remove(name)

    @translate_errors()
    def access(self, name: str) -> FleetAccess:
        """See `StandingPlatform`."""
        return access_of(self._find(name)[0])

    @translate_errors()
    def run(self, name: str, script: Path, arguments: Sequence[str]) -> int:
        """See `StandingPlatform`."""
        found = self._find(name)[0]
        file, access = file_of(found), access_of(found)
        require_readable(script.resolve().parent)
        if file.tls:
            renew_certificates(name)
        return client.run(self._client, lambda: self._created(file, access, script.resolve(), arguments))

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `StandingPlatform`."""
        standing = {each.labels[PROJECT] for each in self._containers(name)}
        return [each for each in self._shown.members(name, with_notes) if project(each.fleet) in standing]

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `StandingPlatform`."""
        return self._shown.log(member, since, follow, tail)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    @translate_errors()
    def _containers(self, name: str | None) -> list[Container]:
        """All containers of a standing fleet, or of all, those of clients included."""
        labels = [STANDING] if name is None else [STANDING, f"{PROJECT}={project(name)}"]
        listed: list[Container] = self._client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return listed

    def _processes(self, name: str | None) -> list[Container]:
        """The containers of ps and plain workers."""
        return [each for each in self._containers(name) if each.labels[ROLE] != CLIENT]

    def _find(self, name: str) -> list[Container]:
        """The containers of ps and plain workers of a fleet.

        Raises:
            UsageError: There is no such fleet.
        """
        found = self._processes(name)
        if not found:
            fleets = {each.labels[PROJECT].removeprefix(project("")) for each in self._processes(None)}
            names = ", ".join(sorted(fleets)) or "there is none"
            raise UsageError(
                f"no fleet {name!r} {self.where}, expected one that `psfleet fleet up --on compose` started: {names}"
            )
        return found

    def _require_no_run(self, name: str) -> None:
        if any(not self._is_standing(each) for each in self._shown.members(name)):
            raise UsageError(
                f"{name} is a run on the Docker engine, expected another name for the fleet: `psfleet down {name}` "
                "ends the run"
            )

    def _require_no_run_on(self, name: str) -> None:
        """Checks that no run trains on a fleet: its containers would be left without a network."""
        label = {"label": f"{ON_FLEET}={name}"}
        found = self._client.containers.list(all=True, filters=label, ignore_removed=True)
        runs = sorted({each.labels[PROJECT].removeprefix(project("")) for each in found})
        if runs:
            raise UsageError(
                f"fleet {name} has runs: {', '.join(runs)}, expected none: `psfleet down {runs[0]}` ends the first"
            )

    def _is_standing(self, member: Member) -> bool:
        return STANDING in self._client.containers.get(member.name).labels

    def _started(self, file: FleetFile, access: FleetAccess) -> FleetAccess:
        """Starts what does not run, and waits until all serve."""
        # What is up stays as it is, also if the image of its name is another one by now.
        create = ("up", "--no-start", "--no-recreate")
        engine.compose(project(file.name), file_text(file, access), Path.cwd(), *create)
        containers = self._processes(file.name)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for start in [pool.submit(_start, each) for each in containers]:
                start.result()
        what = f"fleet {file.name} to serve"
        try:
            wait_until(
                lambda: not_serving(containers), file.deadlines.start_secs, what, done=lambda seen: not seen,
                poll_secs=POLL_SECS,
            )  # fmt: skip
        except DeadlineError as error:
            raise LostPeerError(str(error)) from error
        return access

    def _created(self, file: FleetFile, access: FleetAccess, script: Path, arguments: Sequence[str]) -> Container:
        """A container for a client; the first free index is its own, since no two containers have one name."""
        sources = {PROGRAM: script.parent}
        if file.tls:
            sources[TLS] = certificates_folder(file.name) / CLIENT
        mounts = [Mount(target, str(source), type="bind", read_only=True) for target, source in sources.items()]
        for index in range(MAX_CLIENTS):
            options = client_options(file, access, index, script.name, arguments)
            try:
                return self._client.containers.create(**options, mounts=mounts)
            except APIError as error:
                if error.status_code != CONFLICT:
                    raise engine.failure("docker create", str(error.explanation)) from error
        raise UsageError(f"fleet {file.name} has {MAX_CLIENTS} clients, expected fewer")

    def _remove(self, name: str) -> None:
        """Ends clients, then processes, and removes the network."""
        containers = self._containers(name)
        clients = [each for each in containers if each.labels[ROLE] == CLIENT]
        processes = [each for each in containers if each.labels[ROLE] != CLIENT]
        secs = stop_secs(processes)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for group in (clients, processes):
                for call in [pool.submit(end_container, each, int(secs)) for each in group]:
                    call.result()
        wait_until(lambda: not self._containers(name), REMOVE_SECS, f"the containers of fleet {name} to be removed")
        for network in self._client.networks.list(filters={"label": f"{PROJECT}={project(name)}"}):
            network.remove()


def _start(each: Container) -> None:
    """Starts a container, unless its process runs and has not failed for good."""
    if each.status != "running":
        each.start()
    elif has_failed(each):
        each.restart()
