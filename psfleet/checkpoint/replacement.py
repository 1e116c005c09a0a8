"""Replaces weights: writes a checkpoint that has other tensors in place of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import sync_folder
from psfleet.checkpoint.tensors import KINDS, read_shard, read_tensors
from psfleet.layout import Layout, TensorSpec


def specs_of(layout: Layout) -> dict[str, TensorSpec]:
    """The tensors of a model that checkpoints hold, by name: trained ones first, in the order of their creation."""
    saved = layout.saved
    return {spec.name: spec for kind in KINDS for spec in getattr(saved, kind).specs}


def write_replaced(
    base: Checkpoint, tensors: Mapping[str, np.ndarray], *, generation: int, run: str, extra: Mapping[str, Any]
) -> Checkpoint:
    """Writes a checkpoint of the same step with other tensors, atomically; the optimizer's state is that of `base`.

    Args:
        base: A whole checkpoint.
        tensors: Those that differ, by name; checked before.
        generation: Above that of `base`.
        run: That writes it.
        extra: Of the manifest, in addition to that of `base`.

    Raises:
        OSError: The disk is full or cannot be written.
        NoCheckpointError: `base` cannot be read.
    """
    layout, root = base.layout, base.folder.parent
    values = {**read_tensors(base), **tensors}
    folder = checkpoint_folder(root, base.step, generation)
    # In a store the manifest, which comes last, makes the checkpoint; on a disk the rename does.
    building = folder if isinstance(folder, StoreFolder) else folder.with_name(f".{folder.name}.tmp")
    if isinstance(building, Path) and building.exists():
        # Of a chief that was killed while it wrote.
        shutil.rmtree(building)
    vectors = {kind: getattr(layout, kind).pack(values).reshape(layout.num_ps, -1) for kind in KINDS}
    parts = []
    for shard in range(layout.num_ps):
        content = read_shard(base, layout, shard)
        content = replace(content, **{kind: vector[shard] for kind, vector in vectors.items()})
        parts.append(write_part(building, shard, layout, content, base.step, generation, run))
    write_manifest(
        building,
        layout,
        parts,
        run=run,
        step=base.step,
        generation=generation,
        optimizer=base.optimizer,
        slots=base.slots,
        extra={**base.extra, **extra},
    )
    if isinstance(building, Path) and isinstance(folder, Path):
        building.rename(folder)
        sync_folder(folder.parent)
    return read_manifest(folder)
