"""Checks of a query against the inputs of the model."""

from __future__ import annotations

import numpy as np
import pytest

from psfleet.inference.query import Query, checked_inputs
from psfleet.inference.tensors import ModelMetadata, QueryError, Status, TensorMetadata

TEXTS = ModelMetadata(
    inputs=(TensorMetadata(name="ids", datatype="INT32", shape=(-1, -1)),),
    outputs=(TensorMetadata(name="mean", datatype="FP32", shape=(-1, 8)),),
)


@pytest.mark.parametrize("shape", [[0, 3], [2, 0], [2**40, 0]])
def test_rows_without_elements_are_refused_because_any_number_of_them_fits_into_a_message(shape: list[int]) -> None:
    query = Query("net", "", "", [("ids", np.empty(shape, np.int32))])
    message = r"has shape .*, expected \[-1, -1\] with at least one row and no size 0"
    with pytest.raises(QueryError, match=message) as caught:
        checked_inputs(query, TEXTS)
    assert caught.value.status is Status.INVALID


def test_rows_of_any_length_are_taken() -> None:
    for length in (1, 5):
        given = np.ones([2, length], np.int32)
        assert checked_inputs(Query("net", "", "", [("ids", given)]), TEXTS)[0] is given
