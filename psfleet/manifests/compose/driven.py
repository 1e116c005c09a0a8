"""Renders a fleet with an activity as a docker compose file: a driver, and workers that join it; no ps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.compose.mounts import bind, plain, volume
from psfleet.manifests.compose.paths import Paths
from psfleet.manifests.compose.render import (
    FLEET,
    OUTSIDE,
    RESULTS,
    Service,
    after,
    closed_network,
    member,
    project,
)
from psfleet.manifests.yaml_text import dump
from psfleet.service import settings

ACTIVITY = "psfleet.activity"
"""Label of the containers and of the volume: the kind of the activity. Those of a training run have none."""
CONTENT = "psfleet.activity.content"
"""Label of the containers: the activity, as JSON."""
CHIEF = "chief"
"""The driver's service."""
MODEL = "model"
"""The volume with the model, which is that of another fleet's results."""
OF_TRAINING = (settings.PS, settings.METRICS_PORT)
"""Variables that drivers and their workers do not read."""


def file_text(job: Job, activity: Activity, job_file: Path, folder: Path | None = None) -> str:
    """A compose file as YAML.

    Args:
        job: Its name is that of the fleet; its first worker is the driver.
        job_file: Mounts are relative to its folder, which is the program's.
        folder: As for `render.file_text`.
    """
    return dump(render(job, activity, job_file, folder))


def render(job: Job, activity: Activity, job_file: Path, folder: Path | None = None) -> dict[str, Any]:
    """A compose file's content; see `file_text`.

    Each worker is a service of its own, because it needs its index.
    """
    paths = Paths(job_file, folder)
    address = Address(CHIEF, DATA_PORT)
    variables = {settings.DRIVER: address.data, **activity.worker_variables}
    services = {}
    for index in range(job.fleet.processes - 1):
        service = _service(job, activity, paths, "worker", activity.worker, {settings.INDEX: str(index), **variables})
        # The driver notices by itself whether a worker lives, which serves nothing.
        del service["healthcheck"]
        services[f"worker-{index}"] = service
    own = {settings.INDEX: "0", settings.ADDRESS: address.data, **activity.driver_variables}
    driver = _service(job, activity, paths, CHIEF, activity.driver, own)
    driver["volumes"] += _model(activity)
    # Workers get the files of a store from the driver.
    networks = {FLEET: closed_network(), **({OUTSIDE: {}} if job.checkpoint.store is not None else {})}
    driver["networks"] = [*networks]
    volumes: dict[str, Any] = {RESULTS: {"labels": {ACTIVITY: activity.kind}}}
    if activity.model_fleet:
        volumes[MODEL] = {"external": True, "name": f"{project(activity.model_fleet)}_{RESULTS}"}
    return {
        "name": project(job.name),
        "services": {**services, CHIEF: {**driver, "depends_on": after([*services])}},
        "networks": networks,
        "volumes": volumes,
    }


def _model(activity: Activity) -> list[dict[str, Any]]:
    """The mount of the model."""
    if activity.model_fleet:
        return [volume(MODEL, container.MODEL)]
    return [bind(plain(activity.model_folder), container.MODEL)] if activity.model_folder else []


def _service(
    job: Job, activity: Activity, paths: Paths, role: str, module: str, variables: Mapping[str, str]
) -> Service:
    own = {name: plain(value) for name, value in variables.items()}
    service = member(job, [], role, job.container.worker_image, job.container.worker, own)
    service["environment"] = {name: text for name, text in service["environment"].items() if name not in OF_TRAINING}
    service["labels"] |= {ACTIVITY: activity.kind, CONTENT: plain(activity.model_dump_json())}
    service["volumes"] += paths.mounts(job)
    return service | {"entrypoint": ["/usr/bin/tini", "--", "python", "-m", module], "networks": [FLEET]}
