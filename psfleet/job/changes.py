"""Jobs as flat fields, and what differs between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psfleet.job.job import Job


def changes(before: Mapping[str, Any], job: Job) -> list[str]:
    """The fields in which a job differs from an earlier one, as texts `train.steps 400 -> 900`.

    Args:
        before: The earlier job, as `Job.model_dump(mode="json")` gave it.
    """
    old, new = flattened(before), flattened(job.model_dump(mode="json"))
    return [
        f"{field} {_shown(old, field)} -> {_shown(new, field)}"
        for field in dict.fromkeys([*new, *old])
        if _shown(old, field) != _shown(new, field)
    ]


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """All values of nested mappings by dotted names; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _shown(values: Mapping[str, Any], field: str) -> str:
    return json.dumps(values[field]).strip('"') if field in values else "nothing"
