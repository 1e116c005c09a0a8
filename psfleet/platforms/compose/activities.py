"""What the fleets of an engine do instead of training, from the labels of their containers and volumes."""

from __future__ import annotations

from collections.abc import Sequence

from docker.models.containers import Container
from docker.models.volumes import Volume

from psfleet.errors import UsageError
from psfleet.job.activity import Activity, kind_of, named
from psfleet.manifests.compose.driven import ACTIVITY, CONTENT


def activity_of(container: Container) -> Activity | None:
    """What the fleet of a container does instead of training; None: it trains.

    Raises:
        BadJobError: It is of another version of psfleet.
    """
    text = container.labels.get(CONTENT)
    return None if text is None else Activity.from_json(text, f"container {container.name}: {CONTENT}")


def require_kind(
    name: str, activity: Activity | None, containers: Sequence[Container], volumes: Sequence[Volume]
) -> None:
    """Checks that the remains of a fleet are of the same kind as what is about to be started under its name.

    Raises:
        UsageError: They are not, so that their results would be mixed.
    """
    labels = [*(each.labels for each in containers), *((each.attrs or {}).get("Labels") or {} for each in volumes)]
    kinds = {each.get(ACTIVITY, "") for each in labels} - {kind_of(activity)}
    if kinds:
        raise UsageError(
            f"fleet {name} is on the Docker engine as {named(min(kinds))}, expected another name for "
            f"{named(kind_of(activity))}: `psfleet down {name} --on compose --results` deletes the other one"
        )
