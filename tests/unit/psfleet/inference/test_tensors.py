"""Tensors of the protocol: elements as lists and as bytes, and what is refused."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from psfleet.inference.tensors import DATATYPES, QueryError, datatype_of, from_bytes, from_list, to_bytes, to_list

NUMBERS = [each for name, each in DATATYPES.items() if name != "BYTES"]


@given(st.data(), st.sampled_from(NUMBERS))
def test_numbers_are_the_same_after_bytes_and_after_a_list(data: st.DataObject, dtype: type) -> None:
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(max_dims=3, max_side=4)))
    datatype = datatype_of(array.dtype)
    np.testing.assert_array_equal(from_bytes("x", datatype, array.shape, to_bytes(array)), array)
    np.testing.assert_array_equal(from_list("x", datatype, array.shape, to_list(array)), array)


@given(st.lists(st.binary(max_size=5), max_size=4))
def test_bytes_are_the_same_after_their_raw_form(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    assert from_bytes("x", "BYTES", [len(elements)], to_bytes(array)).tolist() == elements


def test_text_in_json_is_bytes_in_a_tensor() -> None:
    found = from_list("x", "BYTES", [2, 1], [["a"], ["ü"]])
    assert found.ravel().tolist() == [b"a", "ü".encode()]
    assert to_list(found) == ["a", "ü"]


def test_lists_are_flattened_without_a_call_for_each_level() -> None:
    data: list[Any] = [1.0, 2.0]
    for _ in range(10 * sys.getrecursionlimit()):
        data = [data]
    assert from_list("x", "FP32", [2], data).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP8", [1], [1], "has datatype 'FP8', expected one of BOOL"),
        ("FP32", [2], [1], "has 1 elements, expected 2"),
        ("FP32", [-1], [1], "has shape [-1], expected whole numbers from 0"),
        ("FP32", [True], [1], "expected whole numbers from 0"),
        ("FP32", [2**63], [1], "expected whole numbers from 0"),
        ("FP32", [10**4000, 10**4000], [1], "has shape [1000"),
        ("FP32", [2**62] * 65, [1], "has 65 dimensions, expected at most 64"),
        ("FP32", [2**62, 2**62], [1], "has 1 elements"),
        ("FP32", [1], ["1"], "has an element of another kind"),
        ("FP32", [1], [None], "has an element of another kind"),
        ("FP32", [1], [10**400], "too large"),
        ("INT32", [1], [1.5], "has a fraction"),
        ("UINT8", [1], [256], "out of bounds"),
        ("INT64", [1], [True], "has an element of another kind"),
        ("BOOL", [1], [1], "has an element of another kind"),
        ("BYTES", [1], [1], "has an element of another kind, expected BYTES"),
        ("BYTES", [1], [None], "has an element of another kind, expected BYTES"),
        ("FP32", [2], [[1], 2], "has a list beside an element, expected lists of one depth"),
    ],
)
def test_elements_that_do_not_fit_are_refused(datatype: str, shape: list[int], data: Any, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        from_list("x", datatype, shape, data)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [[2**62, 0], [0, 2**63 - 1]])
def test_a_shape_that_no_array_can_have_is_refused(shape: list[int]) -> None:
    count = math.prod(shape)
    for make in (
        lambda: from_list("x", "FP32", shape, [1.0] * count),
        lambda: from_bytes("x", "FP32", shape, bytes(4 * count)),
        lambda: from_bytes("x", "BYTES", shape, bytes(4 * count)),
    ):
        with pytest.raises(QueryError, match=r"input 'x' has shape \[.*\], which no array can have"):
            make()


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP32", [2], bytes(7), "has 7 bytes, expected 8"),
        ("BYTES", [1], b"\x05\0\0\0abc", "an element that ends after its bytes"),
        ("BYTES", [1], b"\x05\0", "an element that ends after its bytes"),
        ("BYTES", [2], b"\x01\0\0\0a", "has 1 elements, expected 2"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(datatype: str, shape: list[int], data: bytes, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        from_bytes("x", datatype, shape, data)
    assert message in str(caught.value)
