"""Uses a checkpoint of a run that trains on, and may delete it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint
from psfleet.errors import NO_CHECKPOINT, PsfleetError

Found = TypeVar("Found")
Result = TypeVar("Result")

MAX_TRIES = 3
"""A run that deletes checkpoints faster than they are read needs a larger `checkpoint.keep`."""


def is_deleted(checkpoint: Checkpoint, source: Folder, step: int | None = None) -> bool:
    """Whether a checkpoint is gone that was chosen as the newest or the best one, so that another one takes its place.

    Args:
        source: Where it was looked for; it may be named by that.
        step: By which it was named; None: by none.
    """
    is_named = step is not None or checkpoint.folder == source
    return not is_named and not (checkpoint.folder / MANIFEST).is_file()


def use_found(find: Callable[[], Found], use: Callable[[Found], Result], is_gone: Callable[[Found], bool]) -> Result:
    """The result of using what is found; if that was deleted meanwhile, it is found again.

    Raises:
        PsfleetError: As `find` and `use`.
    """
    for _ in range(MAX_TRIES - 1):
        found = find()
        try:
            return use(found)
        except PsfleetError as error:
            if error.exit_code != NO_CHECKPOINT or not is_gone(found):
                raise
    return use(find())
