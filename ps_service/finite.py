"""Finds a tensor that is not finite in what a ps is about to save."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psfleet.checkpoint.parts import ShardContent, vector_layouts
from psfleet.layout import Layout


def first_not_finite(layout: Layout, shard: int, content: ShardContent) -> str:
    """The first tensor with an element that is NaN or infinite, for a message; empty if there is none.

    Parameters, the optimizer's slots and scalars, and tensors of state with a floating point dtype are searched; frozen
    tensors are constants of the program. The gaps between tensors are not saved.
    """
    return next(_not_finite(layout, shard, content), "")


def _not_finite(layout: Layout, shard: int, content: ShardContent) -> Iterator[str]:
    layouts = vector_layouts(layout, tuple(content.slots))
    for prefix, vector in content.vectors().items():
        # Most shards are finite: one test of a whole vector is cheaper than one of each tensor.
        if prefix == "frozen" or (vector.dtype != np.uint8 and np.isfinite(vector).all()):
            continue
        for piece in layouts[prefix].pieces(shard):
            values = vector[piece.at : piece.at + piece.stop - piece.start]
            # Pieces begin and end at multiples of 64 bytes, except at the ends of their tensor.
            if piece.spec.is_saved and piece.spec.is_float and not np.isfinite(values.view(piece.spec.dtype)).all():
                yield f"{_kind(prefix)} {piece.spec.name}"
    for name, rows in content.tables.items():
        arrays = {f"table {name}": rows.rows}
        arrays |= {f"optimizer slot {slot} of table {name}": values for slot, values in rows.slots.items()}
        yield from (what for what, values in arrays.items() if not np.isfinite(values).all())
    yield from (f"optimizer scalar {name}" for name, value in content.scalars.items() if not np.isfinite(value).all())


def _kind(prefix: str) -> str:
    return f"optimizer slot {prefix.removeprefix('slot/')} of" if prefix.startswith("slot/") else prefix
