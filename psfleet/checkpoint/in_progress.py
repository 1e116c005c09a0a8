"""Whether a run may be writing a checkpoint at present, for processes that only read checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_lease import has_owner

WRITING_SECS = 60.0
"""A checkpoint whose files have not changed for so long is not being written; clocks of machines may differ."""


def may_be_in_progress(folder: Folder) -> bool:
    """Whether a checkpoint without a manifest may get one, because a run writes it.

    On a disk something was written there within `WRITING_SECS`. In a store, a fleet has the prefix.

    Raises:
        StoreError: A store does not answer.
    """
    if isinstance(folder, StoreFolder):
        return has_owner(folder.parent.parent)
    return time.time() - max(_changes(folder), default=0.0) < WRITING_SECS


def _changes(folder: Path) -> Iterator[float]:
    """When a folder and the files in it changed, in seconds since 1970, as far as they can be read."""
    try:
        yield folder.stat().st_mtime
        yield from [path.stat().st_mtime for path in folder.iterdir()]
    except OSError:
        return
