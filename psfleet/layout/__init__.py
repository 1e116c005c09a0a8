"""The position of each named tensor of a model, on the ps and in what is sent."""

from __future__ import annotations

from psfleet.layout.embedding import (
    EmbeddingContent,
    EmbeddingSpec,
    dense_table,
    initial_blocks,
    initial_rows,
    row_values,
)
from psfleet.layout.flat import ALIGNMENT_BYTES, FlatLayout, Losses, Piece, Specs, Tables, TensorSpec
from psfleet.layout.model import APPROXIMATE, Layout, state_order
from psfleet.layout.state_range import StateRange

__all__ = [
    "ALIGNMENT_BYTES",
    "APPROXIMATE",
    "EmbeddingContent",
    "EmbeddingSpec",
    "FlatLayout",
    "Layout",
    "Losses",
    "Piece",
    "Specs",
    "StateRange",
    "Tables",
    "TensorSpec",
    "dense_table",
    "initial_blocks",
    "initial_rows",
    "row_values",
    "state_order",
]
