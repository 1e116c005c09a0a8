"""Adds containers to a run on a Docker engine, and removes loaders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docker.models.containers import Container

from psfleet.errors import LostPeerError
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.compose.render import ROLE, file_text, project
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.containers import WORKING_DIR, index_of, place_on_fleet, removed_by_others

IN_USE = "is already in use by container"
"""The engine's message about the name of a container that exists."""


def scale_workers(job: Job, chief: Container, workers: int) -> None:
    """Changes the number of workers and spares together, the chief included."""
    _up(job, chief, "--scale", f"worker={workers - 1}", "worker")


def scale_loaders(job: Job, chief: Container, containers: Sequence[Container], loaders: int) -> None:
    """Changes the number of loaders.

    Args:
        job: Of the run.
        chief: Its chief.
        containers: All of the run.
        loaders: The number.
    """
    for each in containers:
        index = index_of(each.labels)
        if each.labels[ROLE] == "loader" and index is not None and index >= loaders:
            # Not stopped before: a command that follows the fleet would see a loader that has failed.
            with removed_by_others():
                each.remove(force=True, v=True)
    _up(job, chief, *(f"loader-{index}" for index in range(loaders)))


def _up(job: Job, chief: Container, *arguments: str) -> None:
    """Creates and starts the containers of services that have too few."""
    engine.require_plugin()
    home = Path(chief.labels[WORKING_DIR])
    text = file_text(job, _program_folder(chief) / "job.yaml", None, "psfleet scale", place=place_on_fleet(chief))
    command = ("up", "-d", "--no-recreate", "--no-deps", *arguments)
    try:
        engine.compose(project(job.name), text, home, *command)
    except LostPeerError as error:
        if IN_USE not in str(error):
            raise
        # Another command has created one of them since compose looked.
        engine.compose(project(job.name), text, home, *command)


def _program_folder(chief: Container) -> Path:
    """The folder that the chief mounts as its program; the project's if the program is in the image.

    A compose file that was rendered to another folder makes that one the project's.
    """
    binds = (each["Source"] for each in chief.attrs.get("Mounts") or () if each["Destination"] == container.PROGRAM)
    return Path(next(binds, chief.labels[WORKING_DIR]))
