"""Checkpoints of a run: finds the newest whole one, writes the initial one, prunes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import (
    FOLDER_PATTERN,
    MANIFEST,
    Checkpoint,
    checkpoint_folder,
    read_manifest,
    write_manifest,
)
from psfleet.checkpoint.parts import ShardContent, sync_folder, write_part
from psfleet.checkpoint.tensors import KINDS
from psfleet.errors import NoCheckpointError
from psfleet.layout import Layout

logger = logging.getLogger("psfleet.checkpoint")


def is_checkpoint_name(name: str) -> bool:
    """Whether a folder of this name is a checkpoint's."""
    return FOLDER_PATTERN.fullmatch(name) is not None


def verify(checkpoint: Checkpoint) -> None:
    """Reads every part and compares size and SHA-256.

    Raises:
        NoCheckpointError: A part is not what was written; names the file.
    """
    for part in checkpoint.parts:
        path = checkpoint.folder / part.file
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
        except OSError as error:
            raise NoCheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        if size != part.num_bytes:
            raise NoCheckpointError(f"{path} has {size} bytes, expected {part.num_bytes}")
        if digest != part.sha256:
            raise NoCheckpointError(f"{path} has SHA-256 {digest}, expected {part.sha256}")


def newest(root: Path) -> Checkpoint | None:
    """The newest checkpoint, by step and then by generation, that is whole; each broken one on the way is logged.

    Returns:
        None if there is no folder of a checkpoint at all.

    Raises:
        NoCheckpointError: There are such folders, but none is whole.
    """
    folders = _folders(root)
    for folder in folders:
        try:
            checkpoint = read_manifest(folder)
            verify(checkpoint)
        except NoCheckpointError as error:
            logger.warning("skipped a broken checkpoint: %s", error)
        else:
            return checkpoint
    if folders:
        raise NoCheckpointError(f"none of the {len(folders)} checkpoints in {root} is whole")
    return None


def prune(root: Path, keep: int) -> list[Path]:
    """Removes all but the newest `keep` checkpoints, and unfinished ones of steps before the newest.

    Checkpoints are judged by their manifests and file sizes; the newest is never removed, nor what cannot be judged.

    Returns:
        The folders that were removed.
    """
    whole: list[Path] = []
    unfinished: list[Path] = []
    for folder in _folders(root):
        try:
            read_manifest(folder)
        except NoCheckpointError:
            if not (folder / MANIFEST).exists():
                unfinished.append(folder)
        else:
            whole.append(folder)
    newest_step = _step_and_generation(whole[0])[0] if whole else 0
    old = [folder for folder in unfinished if _step_and_generation(folder)[0] < newest_step]
    removed = [*whole[max(keep, 1) :], *old]
    for folder in removed:
        # The manifest goes first: a crash in the middle leaves an unfinished checkpoint, not a broken one.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)
    return removed


def write_initial(
    root: Path,
    layout: Layout,
    values: Mapping[str, np.ndarray],
    *,
    run: str,
    generation: int,
    optimizer: str,
    extra: dict[str, Any],
) -> Checkpoint:
    """Writes step 0 from named tensors, without slots; the folder appears whole or not at all.

    Raises:
        KeyError: `values` lacks a tensor of `layout`.
        ValueError: A tensor has another shape than `layout` says.
        OSError: The disk is full, cannot be written, or has such a checkpoint already.
    """
    folder = checkpoint_folder(root, 0, generation)
    building = root / f".{folder.name}.tmp"
    if building.exists():
        shutil.rmtree(building)
    vectors = {
        kind: flat.pack(values).reshape(flat.num_shards, -1)
        for kind, flat in {kind: getattr(layout, kind) for kind in KINDS}.items()
    }
    parts = []
    for shard in range(layout.num_ps):
        content = ShardContent(slots={}, scalars={}, **{kind: vector[shard] for kind, vector in vectors.items()})
        parts.append(write_part(building, shard, layout, content, 0, generation, run))
    write_manifest(
        building, layout, parts, run=run, step=0, generation=generation, optimizer=optimizer, slots=(), extra=extra
    )
    building.rename(folder)
    sync_folder(root)
    return read_manifest(folder)


def _folders(root: Path) -> list[Path]:
    """The folders of checkpoints, whole or not, the newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if is_checkpoint_name(path.name) and path.is_dir()]
    return sorted(found, key=_step_and_generation, reverse=True)


def _step_and_generation(folder: Path) -> tuple[int, int]:
    step, generation = folder.name.rsplit("-g", 1)
    return int(step), int(generation)
