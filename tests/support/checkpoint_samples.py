"""A small model with every kind of tensor, and checkpoints of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, write_manifest
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import ShardContent
from psfleet.layout import FlatLayout, Layout, TensorSpec

PARAMETERS = (
    TensorSpec("dense/kernel", (7, 5)),
    TensorSpec("dense/bias", (5,)),
    TensorSpec("scale@1", ()),
    TensorSpec("nothing", (0, 3)),
    TensorSpec("out/kernel", (11, 23)),
)
STATE = (
    TensorSpec("norm/moving_mean", (41,)),
    TensorSpec("dropout/seed", (2,), "uint32"),
    TensorSpec("seen", (), "int64"),
    TensorSpec("mask", (5,), "bool"),
)
FROZEN = (TensorSpec("table", (9, 5), "float64"),)
SLOTS = ("m", "v")


def sample_layout(num_ps: int = 2, bucket_bytes: int = 100) -> Layout:
    """A layout with parameters, state and frozen weights of several shapes and dtypes."""
    return Layout.plan(PARAMETERS, STATE, FROZEN, num_ps, bucket_bytes)


def random_values(seed: int, specs: tuple[TensorSpec, ...] = (*PARAMETERS, *STATE, *FROZEN)) -> dict[str, np.ndarray]:
    """Any bit patterns, so NaN and infinities too."""
    generator = np.random.default_rng(seed)
    return {
        spec.name: generator.integers(0, 2, spec.shape).astype(bool)
        if spec.dtype == "bool"
        else np.frombuffer(generator.bytes(spec.num_bytes), spec.dtype).reshape(spec.shape)
        for spec in specs
    }


def shards(flat: FlatLayout, values: dict[str, np.ndarray]) -> np.ndarray:
    """Tensors as one vector for each ps, `[num_shards, shard_size]`."""
    return flat.pack(values).reshape(flat.num_shards, -1)


def contents(layout: Layout, seed: int) -> list[ShardContent]:
    """What each ps of the layout holds; the same tensors for the same seed, whatever the layout."""
    values = random_values(seed)
    slots = {
        slot: shards(layout.parameters, random_values(seed + i, PARAMETERS)) for i, slot in enumerate(SLOTS, start=100)
    }
    return [
        ShardContent(
            parameters=shards(layout.parameters, values)[shard],
            slots={slot: vectors[shard] for slot, vectors in slots.items()},
            scalars={"beta1_power": np.array(0.5, np.float32), "owner": np.array(shard, np.float32)},
            state=shards(layout.state, values)[shard],
            frozen=shards(layout.frozen, values)[shard],
        )
        for shard in range(layout.num_ps)
    ]


def save(
    root: Path,
    step: int,
    *,
    layout: Layout | None = None,
    generation: int = 1,
    seed: int = 1,
    extra: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Writes a complete checkpoint of random values."""
    layout = layout or sample_layout()
    folder = checkpoint_folder(root, step, generation)
    parts = [
        write_part(folder, shard, layout, content, step, generation, "run")
        for shard, content in enumerate(contents(layout, seed))
    ]
    return write_manifest(
        folder,
        layout,
        parts,
        run="run",
        step=step,
        generation=generation,
        optimizer="adam",
        slots=SLOTS,
        extra={"versions": {"psfleet": "0"}, **(extra or {})},
    )
