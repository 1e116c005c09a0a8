"""The job of a run for its page: the one that trained the model, with what the user has set apart from the defaults."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.checkpoint.location import recorded_root
from psfleet.checkpoint.store import newest_committed
from psfleet.errors import BadJobError, PsfleetError, UsageError
from psfleet.job.differences import flattened
from psfleet.job.job import parse_job

logger = logging.getLogger("psfleet.report")

LONG_TEXT = 160
"""Characters of a value that are shown; the rest of a longer one is folded."""


@dataclass(frozen=True)
class Value:
    """A field of the job; `rest` is the whole value if `text` is only its start, else empty."""

    field: str
    text: str
    rest: str


@dataclass(frozen=True)
class ShownJob:
    """The fields that differ from their defaults, or have none, and those that do not."""

    own: tuple[Value, ...]
    defaults: tuple[Value, ...]


def trained_job(folder: Path) -> Mapping[str, Any] | None:
    """The resolved job of the newest checkpoint in a run folder; `job.json` may be that of an attempt that was refused.

    None if there is no checkpoint that has one.
    """
    try:
        checkpoint = newest_committed(recorded_root(folder))
    except (PsfleetError, OSError) as error:
        logger.warning("the job of the newest checkpoint is not known: %s", error)
        return None
    return checkpoint.job if checkpoint is not None else None


def newest_job(folder: Path) -> Mapping[str, Any]:
    """The resolved job of the newest attempt in a run folder.

    Raises:
        UsageError: There is none that can be read.
        BadJobError: It is no mapping.
    """
    try:
        content = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        expected = "expected the folder of a run, or its name in runs/"
        raise UsageError(f"{folder}: no job.json can be read ({cause}), {expected}") from error
    if not isinstance(content, dict):
        raise BadJobError(f"{folder / 'job.json'}: expected a resolved job as JSON")
    return content


def job_of_run(folder: Path) -> Mapping[str, Any] | None:
    """The resolved job of a run: of its newest checkpoint, or else of the newest attempt; None if neither is known."""
    try:
        return trained_job(folder) or newest_job(folder)
    except (UsageError, BadJobError):
        return None


def shown(job: Mapping[str, Any]) -> ShownJob:
    """The fields of a resolved job by dotted names, in its order."""
    defaults = _defaults(job)
    fields = flattened(job)
    others = {field for field, value in fields.items() if field in defaults and defaults[field] == value}
    return ShownJob(
        tuple(_value(field, value) for field, value in fields.items() if field not in others),
        tuple(_value(field, value) for field, value in fields.items() if field in others),
    )


def _defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields that a job file can leave out; empty if the job is not valid any more."""
    try:
        required = {
            "name": job["name"],
            "program": job["program"],
            **_required_rules(job),
            "train": {key: job["train"][key] for key in ("steps", "batch_size")},
        }
        if job.get("optimizers"):
            required["train"]["alternate"] = job["train"]["alternate"]
        complete = flattened(parse_job(required).model_dump(mode="json"))
    except (BadJobError, KeyError, TypeError):
        return {}
    return {field: value for field, value in complete.items() if field not in flattened(required)}


def _required_rules(job: Mapping[str, Any]) -> dict[str, Any]:
    """The required fields of the optimizer, or of the optimizers of several losses."""

    def required(rule: Mapping[str, Any]) -> dict[str, Any]:
        return {key: rule[key] for key in ("name", "learning_rate")}

    if optimizers := job.get("optimizers"):
        return {"optimizers": {name: required(rule) for name, rule in optimizers.items()}}
    return {"optimizer": required(job["optimizer"])}


def _value(field: str, value: Any) -> Value:
    """A text as it is, anything else as JSON; one that is long in two parts."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= LONG_TEXT:
        return Value(field, text, "")
    whole = value if isinstance(value, str) else json.dumps(value, indent=2)
    return Value(field, f"{text[:LONG_TEXT]} …", whole)
