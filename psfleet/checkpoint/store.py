"""The checkpoints of a run: finds the newest valid one, writes the initial one, deletes old ones."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import (
    FOLDER_PATTERN,
    MANIFEST,
    Checkpoint,
    UncommittedError,
    read_manifest,
)
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.read_errors import read_error
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.whole import write_whole
from psfleet.errors import BadJobError, NoCheckpointError, StorageError
from psfleet.layout import Layout

logger = logging.getLogger("psfleet.checkpoint")


def is_checkpoint_name(name: str) -> bool:
    """Whether a folder of this name is a checkpoint."""
    return FOLDER_PATTERN.fullmatch(name) is not None


def has_checkpoints(root: Folder) -> bool:
    """Whether there are checkpoints, valid or not."""
    return bool(folders(root))


def verify(checkpoint: Checkpoint) -> None:
    """Checks size and SHA-256 of every part.

    Raises:
        NoCheckpointError: A part is corrupt; names the file.
        StorageError: A part cannot be read now.
        StoreError: A store did not give it: whether it is corrupt is not known.
    """
    for part in checkpoint.parts:
        path = checkpoint.folder / part.file
        try:
            digest, size = _digest(path)
        except StoreError:
            raise
        except OSError as error:
            raise read_error(str(path), error) from error
        if size != part.num_bytes:
            raise NoCheckpointError(f"{path} has {size} bytes, expected {part.num_bytes}")
        if digest != part.sha256:
            raise NoCheckpointError(f"{path} has SHA-256 {digest}, expected {part.sha256}")


def _digest(path: Folder) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    if isinstance(path, StoreFolder):
        digest, size = hashlib.sha256(), 0
        for block in path.blocks():
            digest.update(block)
            size += len(block)
        return digest.hexdigest(), size
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def newest(root: Folder, is_expected: Callable[[Folder], bool] | None = None) -> Checkpoint | None:
    """The newest valid checkpoint, by step and then by generation; newer ones that are invalid are logged.

    Args:
        root: The folder of the checkpoints.
        is_expected: Called with the folder of a checkpoint that was not committed; True: it is skipped without a
            warning. None: a warning is logged for each.

    Returns:
        None if `root` has no checkpoints. In a store, where nothing can be renamed, a folder of step 0 without a
        manifest is none: the chief that began the initial checkpoint was killed.

    Raises:
        NoCheckpointError: `root` has checkpoints, but none is valid.
        StorageError: One cannot be read now: an older one must not take its place.
        StoreError: A store did not give one: an older one must not take its place.
    """
    found = newest_from(root, 0, is_expected)
    if found is None and (existing := [folder for folder in folders(root) if not _is_begun(folder)]):
        raise NoCheckpointError(f"none of the {len(existing)} checkpoints in {root} is valid")
    return found


def _is_begun(folder: Folder) -> bool:
    """Whether a folder of a store has parts of an initial checkpoint that was never committed."""
    is_initial = isinstance(folder, StoreFolder) and step_and_generation(folder)[0] == 0
    return is_initial and not (folder / MANIFEST).exists()


def require_within(checkpoint: Checkpoint, num_steps: int) -> None:
    """Refuses to continue from a checkpoint beyond the final step: a run would be done with too many steps.

    Raises:
        BadJobError: The checkpoint is of a later step than `num_steps`.
    """
    if checkpoint.step > num_steps:
        raise BadJobError(
            f"checkpoint {checkpoint.folder} is at step {checkpoint.step}, train.steps is {num_steps}; expected at "
            "least as many steps, or --fresh to train again from step 0"
        )


def newest_from(root: Folder, step: int, is_expected: Callable[[Folder], bool] | None = None) -> Checkpoint | None:
    """The newest valid checkpoint of at least a step, or None; newer invalid ones are logged, older ones not read.

    Args:
        root, is_expected: As for `newest`.
        step: The least step.
    """
    for folder in folders(root):
        if step_and_generation(folder)[0] < step:
            return None
        try:
            checkpoint = read_manifest(folder)
            verify(checkpoint)
        except NoCheckpointError as error:
            if not (isinstance(error, UncommittedError) and is_expected is not None and is_expected(folder)):
                logger.warning("skipped an invalid checkpoint: %s", error)
        else:
            return checkpoint
    return None


def committed_checkpoints(root: Folder) -> Iterator[Checkpoint]:
    """Those with a valid manifest and parts of the right sizes, the newest first; contents are not read."""
    for folder in folders(root):
        with suppress(NoCheckpointError):
            yield read_manifest(folder)


def newest_committed(root: Folder) -> Checkpoint | None:
    """The newest of `committed_checkpoints`; None if there is none."""
    return next(committed_checkpoints(root), None)


def prune(root: Folder, keep: int, protected: Collection[Folder] = ()) -> list[Folder]:
    """Deletes all but the newest `keep` checkpoints, and uncommitted ones before the newest.

    The newest is that of the highest step in the highest generation: a generation can have begun at an earlier step
    than that of a checkpoint before it, which was damaged. It is never deleted, nor is one whose manifest is invalid.
    Only manifests and file sizes are checked.

    Args:
        root: The folder of the checkpoints.
        keep: How many of the newest are kept.
        protected: Folders that are kept in addition.

    Returns:
        The folders that were deleted.
    """
    valid: list[Folder] = []
    uncommitted: list[Folder] = []
    for folder in sorted(folders(root), key=_generation_and_step, reverse=True):
        try:
            read_manifest(folder)
        except UncommittedError:
            uncommitted.append(folder)
        except (NoCheckpointError, StorageError):
            continue
        else:
            valid.append(folder)
    old = [each for each in uncommitted if valid and _generation_and_step(each) < _generation_and_step(valid[0])]
    removed = [folder for folder in [*valid[max(keep, 1) :], *old] if folder not in protected]
    for folder in removed:
        delete(folder)
    return removed


def delete(folder: Folder) -> None:
    """Deletes a checkpoint, the manifest first: a crash in between leaves an uncommitted one, not an invalid one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if isinstance(folder, StoreFolder):
        folder.delete()
    else:
        shutil.rmtree(folder)


def write_initial(
    root: Folder,
    layout: Layout,
    values: Mapping[str, np.ndarray],
    *,
    run: str,
    generation: int,
    optimizer: str,
    extra: dict[str, Any],
) -> Checkpoint:
    """Writes the checkpoint of step 0 from named tensors, without slots; see `write_whole`."""
    return write_whole(
        root,
        layout,
        values,
        lambda _, vectors: ShardContent(slots={}, scalars={}, **vectors),
        run=run,
        step=0,
        generation=generation,
        optimizer=optimizer,
        slots=(),
        extra=extra,
    )


def folders(root: Folder) -> list[Folder]:
    """The folders of all checkpoints, valid or not, the newest first."""
    found: list[Folder] = []
    if isinstance(root, StoreFolder):
        found += [folder for folder in root.iterdir() if is_checkpoint_name(folder.name)]
    elif root.is_dir():
        found += [path for path in root.iterdir() if is_checkpoint_name(path.name) and path.is_dir()]
    return sorted(found, key=step_and_generation, reverse=True)


def step_and_generation(folder: Folder) -> tuple[int, int]:
    """Step and generation of a checkpoint, by the name of its folder."""
    step, generation = folder.name.rsplit("-g", 1)
    return int(step), int(generation)


def _generation_and_step(folder: Folder) -> tuple[int, int]:
    return step_and_generation(folder)[::-1]
