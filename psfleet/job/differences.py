"""What differs between jobs: since a checkpoint, and between runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.problems import UNIONS, UNIONS_BY_NAME


def changes(before: Mapping[str, Any] | None, job: Job) -> list[str]:
    """The fields in which a job differs from an earlier one, as texts `train.steps 400 -> 900`.

    A learning rate that is left to the program's optimizer is not compared: only a chief knows it.

    Args:
        before: The earlier job, as `Job.model_dump(mode="json")` gave it; None: it is not known, nor are changes.
    """
    if before is None:
        return []
    earlier, now = _comparable(before, job)
    old, new = flattened(_without_other_kinds(earlier, now)), flattened(now)
    found = _differing([old, new], _fields([new, old]))
    return [f"{field} {' -> '.join(shown)}" for field, shown in found.items()]


def is_same(before: Mapping[str, Any], job: Job) -> bool:
    """Whether a job is an earlier one, by value and type; no text of `changes` distinguishes all options of a program.

    Args:
        before: The earlier job, as `Job.model_dump(mode="json")` gave it.
    """
    old, new = (json.dumps(each, sort_keys=True) for each in _comparable(before, job))
    return old == new


def differing(jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The fields in which jobs differ, each with its values as text in the order of the jobs.

    Args:
        jobs: As `Job.model_dump(mode="json")` gave them.
    """
    flat = [flattened(_completed(job)) for job in jobs]
    return _differing(flat, _fields(flat))


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """All values of nested mappings by dotted names; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _without_other_kinds(old: Mapping[str, Any], new: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """An earlier job in which a section that is gone is one value.

    One of another kind, for example with another optimizer, has only the fields that both kinds have.

    Args:
        section: The key of `old` in the section above; empty: the whole job.
    """
    found: dict[str, Any] = {}
    for key, value in old.items():
        now = new.get(key)
        if not isinstance(value, Mapping) or not value:
            found[key] = value
        elif not isinstance(now, Mapping) or not now:
            found[key] = f"{{{', '.join(f'{field}: {_plain(each)}' for field, each in flattened(value).items())}}}"
        else:
            is_union = key in UNIONS or section in UNIONS_BY_NAME
            is_other = is_union and any(value.get(tag) != now.get(tag) for tag in ("name", "kind"))
            kept = {field: each for field, each in value.items() if field in now or not is_other}
            found[key] = _without_other_kinds(kept, now, key)
    return found


def _fields(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of flattened jobs; an empty section is none if another job has fields in it, which say the same."""
    names = dict.fromkeys(chain(*flat))
    sections = {name[:at] for name in names for at, character in enumerate(name) if character == "."}
    return [name for name in names if name not in sections or any(each.get(name) for each in flat)]


def _comparable(before: Mapping[str, Any], job: Job) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """An earlier job and a job; both without a learning rate if that is left to the program's optimizer."""
    old, new = _completed(before), job.model_dump(mode="json")
    rule = old.get("optimizer")
    own = job.optimizer
    if own is not None and own.learning_rate is None and isinstance(rule, Mapping) and rule.get("name") == own.name:
        old = {**old, "optimizer": {**rule, "learning_rate": None}}
    return old, new


def _completed(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A job with the defaults of the fields that its version did not have; as it is if it is not valid any more."""
    try:
        return parse_job(content).model_dump(mode="json")
    except BadJobError:
        return content


def _differing(flat: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> dict[str, list[str]]:
    """Those of the fields whose values differ, with the values as text."""
    values = {field: [json.dumps(each[field]) if field in each else "nothing" for each in flat] for field in fields}
    return {field: _shown(texts) for field, texts in values.items() if len(set(texts)) > 1}


def _plain(value: Any) -> str:
    """A value in JSON; a text without its quotes."""
    return json.dumps(value).strip('"')


def _shown(texts: Sequence[str]) -> list[str]:
    """Values in JSON without the quotes of texts, unless different ones would look the same."""
    plain = [text.strip('"') for text in texts]
    return plain if len(set(plain)) == len(set(texts)) else list(texts)
