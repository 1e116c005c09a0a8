"""A run that is to be started in a namespace: its objects, and the kind of what it finds under its name there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psfleet.errors import UsageError
from psfleet.job.activity import Activity, kind_of, named
from psfleet.launch.platform import Request
from psfleet.manifests.kubernetes import driven
from psfleet.manifests.kubernetes.names import ACTIVITY, ACTIVITY_KEY
from psfleet.manifests.kubernetes.render import render
from psfleet.manifests.on_fleet import OnFleet
from psfleet.platforms.kubernetes.api import Cluster


def rendered(request: Request) -> list[dict[str, Any]]:
    """The objects of a request."""
    if request.activity is not None:
        return driven.render(request.job, request.activity, request.job_file)
    place = OnFleet.of_new_run(request.job, request.fleet) if request.fleet else None
    return render(request.job, request.job_file, request.paused, place)


def require_kind(name: str, activity: Activity | None, found: Iterable[Any], namespace: str) -> None:
    """Checks that the remains of a fleet are of the same kind as what is about to be started under its name.

    Args:
        found: The Jobs and volumes of the name.

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
