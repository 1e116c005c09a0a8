"""Assigns a folder to each callback of a run, which the callback keeps when the run resumes with other callbacks."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from psfleet.files import replace_file
from psfleet.job.callback import STATE_PREFIX, CallbackSpec

RECORD = f".{STATE_PREFIX}folders.json"
"""File beside the folders: the callback of each."""

logger = logging.getLogger("psfleet.callbacks")


@dataclass(frozen=True)
class OwnFolder:
    """An entry of the record: a callback and its folder.

    Attributes:
        use: `use` of the callback.
        options: A digest of its options.
        name: The name of the folder.
    """

    use: str
    options: str
    name: str


def state_folders(parent: Path, specs: Sequence[CallbackSpec]) -> list[Path]:
    """The folders of a job's callbacks in the order of the job; creates those that are missing, and records them.

    A callback keeps the folder that is recorded for its `use` and options. Otherwise it gets a recorded folder of the
    same `use` that no other callback of the job has, because the options have changed. Otherwise it gets a new folder.

    Raises:
        OSError: A folder or the record cannot be written.
    """
    known = _recorded(parent / RECORD)
    own = _assigned(known, specs)
    for each in own:
        (parent / each.name).mkdir(parents=True, exist_ok=True)
    names = {each.name for each in own}
    record = [*own, *(each for each in known if each.name not in names)]
    if record != known:
        replace_file(parent / RECORD, json.dumps([asdict(each) for each in record]))
    return [parent / each.name for each in own]


def _assigned(known: Iterable[OwnFolder], specs: Sequence[CallbackSpec]) -> list[OwnFolder]:
    """The folder of each callback; those whose options have not changed choose first."""
    free = list(known)
    found: dict[int, OwnFolder] = {}
    for ignores_options in (False, True):
        for index, spec in enumerate(specs):
            options = _digest(spec)
            fits = (each for each in free if each.use == spec.use and (ignores_options or each.options == options))
            folder = None if index in found else next(fits, None)
            if folder is not None:
                free.remove(folder)
                found[index] = OwnFolder(spec.use, options, folder.name)
    taken = {each.name for each in (*free, *found.values())}
    for index, spec in enumerate(specs):
        if index not in found:
            found[index] = OwnFolder(spec.use, _digest(spec), _new_name(spec, taken))
            taken.add(found[index].name)
    return [found[index] for index in range(len(specs))]


def _new_name(spec: CallbackSpec, taken: Iterable[str]) -> str:
    """The callback's `use`, with a number if another callback has that name."""
    name = first = f"{STATE_PREFIX}{spec.use.replace(':', '.')}"
    number = 1
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name


def _digest(spec: CallbackSpec) -> str:
    options = json.dumps(spec.options, sort_keys=True, default=str)
    return hashlib.sha256(options.encode()).hexdigest()[:16]


def _recorded(path: Path) -> list[OwnFolder]:
    """The record; empty if there is none, or if it cannot be read, which is logged."""
    try:
        found = [
            OwnFolder(**{key: str(value) for key, value in each.items()}) for each in json.loads(path.read_bytes())
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read (%s): callbacks with the same use may change folders", path, error)
        return []
    return [each for each in found if each.name.startswith(STATE_PREFIX) and os.sep not in each.name]
