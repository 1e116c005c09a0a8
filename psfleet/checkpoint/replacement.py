"""Replaces weights: writes a checkpoint that has other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.tensors import KINDS, read_shard, read_tensors
from psfleet.checkpoint.whole import Vectors, write_whole
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
        tensors: The new tensors by name; the caller has checked them. All others are those of `base`.
        generation: Of the new checkpoint; higher than that of `base`.
        run: Id of the run that writes the checkpoint.
        extra: Added to the `extra` of the manifest of `base`.

    Raises:
        OSError: The disk is full or cannot be written.
        NoCheckpointError: `base` cannot be read.
    """
    layout = base.layout

    def content_of(shard: int, vectors: Vectors) -> ShardContent:
        return replace(read_shard(base, layout, shard), **vectors)

    return write_whole(
        base.folder.parent,
        layout,
        {**read_tensors(base), **tensors},
        content_of,
        run=run,
        step=base.step,
        generation=generation,
        optimizer=base.optimizer,
        slots=base.slots,
        extra={**base.extra, **extra},
    )
