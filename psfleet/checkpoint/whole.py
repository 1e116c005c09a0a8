"""Writes a whole checkpoint in one process: the part of each ps, and then the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import ShardContent, sync_folder
from psfleet.checkpoint.tensors import KINDS
from psfleet.layout import Layout

Vectors = Mapping[str, Any]
"""The flat array of a shard's tensors of each kind, by the field of `ShardContent`."""


def write_whole(
    root: Folder,
    layout: Layout,
    values: Mapping[str, np.ndarray],
    content_of: Callable[[int, Vectors], ShardContent],
    *,
    run: str,
    step: int,
    generation: int,
    optimizer: str,
    slots: Sequence[str],
    extra: dict[str, Any],
) -> Checkpoint:
    """Writes a checkpoint atomically, from named tensors.

    In a store only the manifest makes it a checkpoint; on a disk it gets its name last, too.

    Args:
        root: The folder of the checkpoints.
        values: Every tensor of `layout`.
        content_of: Returns a shard with its optimizer's state; called with its index and its arrays.
        run, step, generation, optimizer, slots, extra: Of the manifest.

    Raises:
        KeyError: `values` lacks a tensor of `layout`.
        ValueError: The shape of a tensor differs from `layout`.
        OSError: The disk is full or cannot be written, or the checkpoint exists already.
    """
    folder = checkpoint_folder(root, step, generation)
    building = folder if isinstance(folder, StoreFolder) else folder.with_name(f".{folder.name}.tmp")
    if isinstance(root, Path):
        # Of chiefs that were killed while they wrote; only one chief at a time writes whole checkpoints.
        for left in root.glob(".*-g*.tmp"):
            shutil.rmtree(left)
    vectors = {kind: getattr(layout, kind).pack(values).reshape(layout.num_ps, -1) for kind in KINDS}
    parts = []
    for shard in range(layout.num_ps):
        content = content_of(shard, {kind: vector[shard] for kind, vector in vectors.items()})
        parts.append(write_part(building, shard, layout, content, step, generation, run))
    write_manifest(
        building,
        layout,
        parts,
        run=run,
        step=step,
        generation=generation,
        optimizer=optimizer,
        slots=slots,
        extra=extra,
    )
    if isinstance(building, Path) and isinstance(root, Path):
        building.rename(str(folder))
        sync_folder(root)
    return read_manifest(folder)
