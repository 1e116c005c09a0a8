"""What differs between jobs: since a checkpoint, and between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job

_RATE = "optimizer.learning_rate"


def changes(before: Mapping[str, Any] | None, job: Job) -> list[str]:
    """The fields in which a job differs from an earlier one, as texts `train.steps 400 -> 900`.

    A learning rate that is left to the program's optimizer is not compared: only a chief knows it.

    Args:
        before: The earlier job, as `Job.model_dump(mode="json")` gave it; None: it is not known, nor are changes.
    """
    if before is None:
        return []
    old, new = flattened(_completed(before)), flattened(job.model_dump(mode="json"))
    if old.get("optimizer.name") == job.optimizer.name and job.optimizer.learning_rate is None:
        old[_RATE] = None
    return [
        f"{field} {_shown(old, field)} -> {_shown(new, field)}"
        for field in _fields([new, old])
        if _shown(old, field) != _shown(new, field)
    ]


def differing(jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The fields in which jobs differ, each with its values as text in the order of the jobs.

    Args:
        jobs: As `Job.model_dump(mode="json")` gave them.
    """
    flat = [flattened(_completed(job)) for job in jobs]
    values = {field: [_shown(each, field) for each in flat] for field in _fields(flat)}
    return {field: shown for field, shown in values.items() if len(set(shown)) > 1}


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """All values of nested mappings by dotted names; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _fields(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of flattened jobs; an empty section is none if another job has fields in it, which say the same."""
    names = dict.fromkeys(chain(*flat))
    sections = {name[:at] for name in names for at, character in enumerate(name) if character == "."}
    return [name for name in names if name not in sections or any(each.get(name) for each in flat)]


def _completed(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A job with the defaults of the fields that its version did not have; as it is if it is not valid any more."""
    try:
        return parse_job(content).model_dump(mode="json")
    except BadJobError:
        return content


def _shown(values: Mapping[str, Any], field: str) -> str:
    return json.dumps(values[field]).strip('"') if field in values else "nothing"
