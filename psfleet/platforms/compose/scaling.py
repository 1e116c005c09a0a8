"""Adds containers to a run on a Docker engine, and removes loaders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docker.models.containers import Container

from psfleet.job.job import Job
from psfleet.manifests.compose.render import ROLE, file_text, project
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.containers import WORKING_DIR, index_of, place_on_fleet, removed_by_others


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
    text = file_text(job, home / "job.yaml", None, "psfleet scale", place=place_on_fleet(chief))
    engine.compose(project(job.name), text, home, "up", "-d", "--no-recreate", "--no-deps", *arguments)
