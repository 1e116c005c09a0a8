"""Reads V1Jobs: the fleet and component of each, its indexes, whether it is suspended, how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psfleet.errors import UsageError
from psfleet.manifests.kubernetes.names import COMPONENT, INSTANCE, ON_FLEET, PROGRAM_VOLUME, RUN_ID, WORKER
from psfleet.manifests.on_fleet import OnFleet
from psfleet.service.settings import FIRST_INDEX

SUSPENDED = "the Job is suspended: it waits until a user resumes it"


COMPLETE = "Complete"
"""Condition of a Job that has succeeded."""


def place_of(job: Any) -> tuple[str, str]:
    """The fleet and the component that a V1Job runs."""
    return job.metadata.labels[INSTANCE], job.metadata.labels[COMPONENT]


def on_fleet(job: Any) -> OnFleet | None:
    """The place of the run of a chief's V1Job on a standing fleet; None: it has none."""
    labels = job.metadata.labels
    return OnFleet(labels[ON_FLEET], labels[RUN_ID]) if {ON_FLEET, RUN_ID} <= labels.keys() else None


def num_indexes(job: Any) -> int:
    """How many indexes a V1Job runs; a Job without parallelism, of a fleet that was scaled to its chief, runs none."""
    return int(min(job.spec.completions, job.spec.parallelism))


def failed_indexes(job: Any) -> set[int]:
    """The indexes of a V1Job whose restarts are used up; the API writes them as "1,3-5"."""
    parts = (part.partition("-") for part in (job.status.failed_indexes or "").split(",") if part)
    return {index for first, _, last in parts for index in range(int(first), int(last or first) + 1)}


def is_suspended(job: Any) -> bool:
    """Whether a V1Job is held back, by a user or by a queue."""
    return bool(job.spec.suspend)


def verdict(job: Any) -> Any:
    """The condition that ended a V1Job: Complete or Failed; None while it runs."""
    conditions = job.status.conditions or ()
    return next((each for each in conditions if each.type in (COMPLETE, "Failed") and each.status == "True"), None)


def is_complete(job: Any) -> bool:
    """Whether a V1Job has succeeded."""
    ended = verdict(job)
    return ended is not None and ended.type == COMPLETE


def require_own_chief(jobs: Iterable[Any]) -> None:
    """Checks that no V1Job of other workers has a chief that runs, as index 0, as older versions of psfleet started it.

    Raises:
        UsageError: One has. Its chief cannot be asked to save, so nothing may end it unasked.
    """
    for job in jobs:
        containers = job.spec.template.spec.containers if place_of(job)[1] == WORKER and verdict(job) is None else ()
        own = [each for each in containers if each.name == WORKER]
        if own and FIRST_INDEX not in [variable.name for variable in own[0].env or ()]:
            name = job.metadata.name
            raise UsageError(
                f"fleet {place_of(job)[0]} was started by an older psfleet, and runs: expected that version's `psfleet "
                f"down`, which saves what it trained, or `kubectl delete job {name}`, which does not"
            )


def program_items(job: Any) -> list[dict[str, str]] | None:
    """The `items` of the volume with the training program's files in the pods of a V1Job; None: they have none."""
    volumes = [volume for volume in job.spec.template.spec.volumes or () if volume.name == PROGRAM_VOLUME]
    return [{"key": item.key, "path": item.path} for item in volumes[0].config_map.items] if volumes else None
