"""The committed record of a run folder: the newest checkpoint that this attempt of the run has committed.

Without it, a chief that replaces another could not distinguish a deleted checkpoint from one that was never written.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder
from psfleet.errors import NoCheckpointError
from psfleet.files import replace_file

FILE_NAME = ".committed"


def write(out: Path, checkpoint: Checkpoint) -> None:
    """Records a checkpoint that was committed. Errors are ignored: the record only serves `require_nothing_deleted`."""
    with suppress(OSError):
        replace_file(out / FILE_NAME, json.dumps({"step": checkpoint.step, "generation": checkpoint.generation}))


def require_nothing_deleted(out: Path, root: Folder, found: Checkpoint | None, trained: int) -> None:
    """Refuses to train steps again whose checkpoint was deleted. After damage to one, an older one may be restored.

    Args:
        out: The run folder.
        root: The folder of its checkpoints.
        found: The newest valid checkpoint; None: there is none.
        trained: The highest step that is known to have been applied.

    Raises:
        NoCheckpointError: The newest committed checkpoint was deleted, or steps were trained and there is none at all.
    """
    if found is None and trained > 0:
        raise NoCheckpointError(
            f"{trained} steps were trained, but {root} has no checkpoint, not even that of step 0: the checkpoints "
            "were deleted or are not mounted. Training does not start again unless the run is started with --fresh"
        )
    step, generation = _read(out)
    if found is None or found.step >= step:
        return
    folder = checkpoint_folder(root, step, generation)
    if not folder.exists():
        raise NoCheckpointError(
            f"checkpoint {folder} was committed and is gone; the newest one there is {found.folder.name}. Restore the "
            "folder, or start the run again to train from the older checkpoint"
        )


def _read(out: Path) -> tuple[int, int]:
    """Step and generation of the record; zeros if it is missing or unreadable."""
    try:
        record = json.loads((out / FILE_NAME).read_text())
        return int(record["step"]), int(record["generation"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0, 0
