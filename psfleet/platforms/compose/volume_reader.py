"""Reads the volume of a fleet that is down, through a container that is created for it and never started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import docker
from docker.models.containers import Container
from docker.models.volumes import Volume

from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.platforms.compose import engine

READER = "psfleet.reads-results-of"
"""Label of such a container: the job's name. It has no role, so it is no member of the fleet."""


@contextmanager
def volume_reader(client: docker.DockerClient, job: Job, volume: Volume) -> Iterator[Container]:
    """A container from which the engine copies files of a volume; removed with the block.

    Raises:
        UsageError: The engine has no image for it.
    """
    image = job.container.ps_image
    engine.require_images(client, [image])
    mounted = {volume.name: {"bind": container.OUT, "mode": "ro"}}
    reader = client.containers.create(image, network_mode="none", volumes=mounted, labels={READER: job.name})
    try:
        yield reader
    finally:
        reader.remove(force=True)


def remove_readers(client: docker.DockerClient, name: str) -> None:
    """Removes readers: one whose command was killed would keep the volume from being removed.

    A command that still reads through one ends with an error.
    """
    for left in client.containers.list(all=True, filters={"label": f"{READER}={name}"}, ignore_removed=True):
        left.remove(force=True)
