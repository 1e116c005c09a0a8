"""A run that is to be started in a namespace: its objects, and the kind of what it finds under its name there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psfleet.errors import UsageError
from psfleet.job.activity import Activity, kind_of, named
from psfleet.launch.platform import Request
from psfleet.manifests.kubernetes import driven, service
from psfleet.manifests.kubernetes.names import (
    ACTIVITY,
    ACTIVITY_KEY,
    CHIEF,
    FRONT,
    WORKER,
    component_name,
)
from psfleet.manifests.kubernetes.render import render
from psfleet.manifests.on_fleet import OnFleet
from psfleet.platforms.kubernetes.api import Cluster


def rendered(request: Request) -> list[dict[str, Any]]:
    """The objects of a request."""
    plan = request.activity.service if request.activity is not None else None
    if request.activity is not None and plan is not None:
        return service.render(request.job, request.activity, plan, request.front_files)
    if request.activity is not None:
        return driven.render(request.job, request.activity, request.job_file)
    place = OnFleet.of_new_run(request.job, request.fleet) if request.fleet else None
    return render(request.job, request.job_file, request.paused, place)


def in_order(
    name: str, objects: Iterable[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The objects of a fleet as they are to be created: what its pods need; what makes pods; what makes it a fleet."""
    chief, worker = (("Job", component_name(name, component)) for component in (CHIEF, WORKER))
    _, deployment = service.DEPLOYMENT
    front = (deployment, component_name(name, FRONT))

    def place(content: dict[str, Any]) -> int:
        named = (content["kind"], content["metadata"]["name"])
        return 2 if named in (chief, front) else 1 if named == worker or named[0] == deployment else 0

    found = list(objects)
    needed, making, (last,) = ([each for each in found if place(each) == number] for number in range(3))
    return needed, making, last


def require_kind(name: str, activity: Activity | None, found: Iterable[Any], namespace: str) -> None:
    """Checks that the remains of a fleet are of the same kind as what is about to be started under its name.

    Args:
        found: The Jobs, Deployments and volumes of the name.

    Raises:
        UsageError: They are not, so that their results would be mixed.
    """
    kinds = {(each.metadata.labels or {}).get(ACTIVITY, "") for each in found} - {kind_of(activity)}
    if kinds:
        raise UsageError(
            f"fleet {name} is in namespace {namespace} as {named(min(kinds))}, expected another name for "
            f"{named(kind_of(activity))}: `psfleet down {name} --on kubernetes --results` deletes the other one"
        )


def activity_of(cluster: Cluster, name: str) -> Activity | None:
    """What a fleet does instead of training; None: it trains, or there is none.

    Raises:
        BadJobError: It is of another version of psfleet.
    """
    text = (cluster.config_map(name) or {}).get(ACTIVITY_KEY)
    return None if text is None else Activity.from_json(text, f"ConfigMap {name}: {ACTIVITY_KEY}")
