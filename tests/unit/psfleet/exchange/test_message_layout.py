"""The tensors of a message in memory: each aligned, whatever pieces it is sent in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.layout import ALIGNMENT_BYTES

LAYOUT = MessageLayout([TensorKind(np.dtype(np.int64), 3), TensorKind(np.dtype(np.float32), 1000)])
STAMP = np.arange(3)
VALUES = np.arange(1000, dtype=np.float32)


def memory() -> np.ndarray:
    """Of the size of a message, aligned as a page is."""
    content = np.zeros(LAYOUT.size + ALIGNMENT_BYTES, np.uint8)
    start = -content.ctypes.data % ALIGNMENT_BYTES
    return content[start : start + LAYOUT.size]


def test_tensors_have_their_types_and_sizes_and_are_aligned() -> None:
    stamp, values = LAYOUT.arrays(memory())
    assert (stamp.dtype, stamp.size, values.dtype, values.size) == (np.int64, 3, np.float32, 1000)
    assert values.ctypes.data % ALIGNMENT_BYTES == 0
    assert LAYOUT.num_bytes == 3 * 8 + 1000 * 4


@pytest.mark.parametrize("cuts", [[], [1], [0, 0, 999], [250, 500, 1000]])
def test_a_tensor_can_be_in_several_pieces(cuts: list[int]) -> None:
    content = memory()
    LAYOUT.fill(content, [STAMP, *np.split(VALUES, cuts)])
    stamp, values = LAYOUT.arrays(content)
    assert stamp.tolist() == STAMP.tolist()
    assert values.tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([STAMP, VALUES[:-1]], "ends 4 bytes too early"),
        ([STAMP[:2], VALUES], "is 3992 bytes too long"),
        ([STAMP, VALUES, STAMP], "more pieces than its tensors take"),
    ],
)
def test_other_pieces_are_refused(pieces: list[np.ndarray], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LAYOUT.fill(memory(), pieces)


def test_bfloat16_keeps_its_bits() -> None:
    values = np.arange(100).astype(ml_dtypes.bfloat16)
    layout = MessageLayout.of([values])
    content = np.zeros(layout.size, np.uint8)
    layout.fill(content, [values])
    assert layout.arrays(content)[0].tolist() == values.tolist()
