"""What a V1Job says about a fleet: whose it is, whether it is held back, how it ended."""

from __future__ import annotations

from typing import Any

from psfleet.manifests.kubernetes.names import COMPONENT, INSTANCE

SUSPENDED = "the Job is suspended: it waits until a user resumes it"


def place_of(job: Any) -> tuple[str, str]:
    """The fleet and the component that a V1Job runs."""
    return job.metadata.labels[INSTANCE], job.metadata.labels[COMPONENT]


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
    return next((each for each in conditions if each.type in ("Complete", "Failed") and each.status == "True"), None)
