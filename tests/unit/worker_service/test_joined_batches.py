"""Full batches of pieces of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psfleet.errors import ProgramError
from worker_service.joined_batches import JoinedBatches, Piece
from worker_service.pass_counts import PassKey

FIRST, SECOND = PassKey(0, "a", 0), PassKey(0, "a", 1)


def piece(key: PassKey, *arrays: Any) -> Piece:
    return Piece(key, tuple(np.asarray(array) for array in arrays))


def test_examples_keep_their_order_and_their_pass_and_none_is_left_out() -> None:
    joined = JoinedBatches(4, pads=False)
    joined.add(piece(FIRST, [1, 2, 3], [[1.0], [2.0], [3.0]]))
    assert joined.take() is None
    joined.add(piece(SECOND, [4, 5, 6, 7, 8, 9], [[4.0], [5.0], [6.0], [7.0], [8.0], [9.0]]))
    for expected, counts in (([1, 2, 3, 4], [(FIRST, 3), (SECOND, 1)]), ([5, 6, 7, 8], [(SECOND, 4)])):
        found = joined.take()
        assert found is not None
        (numbers, values), passes = found
        assert numbers.tolist() == expected
        assert values[:, 0].tolist() == expected
        assert passes == counts
    assert joined.take() is None
    assert joined.keys() == {SECOND}


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        ([[1]], [[2, 3]], [[1, 0], [2, 3]]),
        (np.array([[b"a"]], object), np.array([[b"b", b"c"]], object), [[b"a", b""], [b"b", b"c"]]),
        ([[True]], [[True, True]], [[True, False], [True, True]]),
    ],
)
def test_examples_of_unequal_sizes_are_padded_to_the_largest(small: Any, large: Any, expected: list[Any]) -> None:
    joined = JoinedBatches(2, pads=True)
    joined.add(piece(FIRST, small))
    joined.add(piece(SECOND, large))
    found = joined.take()
    assert found is not None
    assert found[0][0].tolist() == expected


def test_without_padding_unequal_sizes_are_refused() -> None:
    joined = JoinedBatches(2, pads=False)
    joined.add(piece(FIRST, [[1]]))
    joined.add(piece(FIRST, [[1, 2]]))
    with pytest.raises(ProgramError, match=r"shapes \(1,\) and \(2,\); input.pad: true pads them"):
        joined.take()
