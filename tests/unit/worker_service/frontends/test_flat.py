"""The tensors of a program are found in the flat vector however it is divided."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from psfleet.layout import FlatLayout, TensorSpec
from worker_service.frontends import flat

SPECS = (TensorSpec("first", (3, 5)), TensorSpec("none", (0, 4)), TensorSpec("second", (40,)), TensorSpec("scalar", ()))
LAYOUT = FlatLayout(SPECS, num_shards=1)
"""Of 80 elements: tensors begin at 0, 16, 16 and 64."""


@pytest.mark.parametrize("sizes", [[80], [16, 64], [64, 16], [16] * 5, [1, 79], [20, 4, 40, 16], [3, 60, 17]])
def test_tensors_are_found_in_the_pieces_of_a_vector(sizes: list[int]) -> None:
    values = {spec.name: np.arange(spec.size, dtype=np.float32).reshape(spec.shape) + 1 for spec in SPECS}
    assert sum(sizes) == LAYOUT.size
    pieces = np.split(LAYOUT.pack(values), np.cumsum(sizes)[:-1])
    found = flat.slices(LAYOUT, [tf.constant(piece) for piece in pieces])
    for spec, tensor in zip(SPECS, found, strict=True):
        assert tensor.shape == spec.shape
        assert np.array_equal(tensor.numpy(), values[spec.name])


def test_only_tensors_in_several_pieces_are_copied() -> None:
    with tf.Graph().as_default() as graph:
        flat.slices(LAYOUT, [tf.zeros([32]), tf.zeros([48])])
        copies = [each for each in graph.get_operations() if each.type == "ConcatV2"]
    assert [copy.outputs[0].shape for copy in copies] == [40]


@pytest.mark.parametrize("name", ["__block/w", "_out/kernel", "my out/kernel", "größe/kernel", "-/w", "dense/kernel#1"])
def test_every_name_of_a_tensor_can_be_one_of_an_operation(name: str) -> None:
    layout = FlatLayout((TensorSpec(name, (3,)), TensorSpec("dense/kernel", (2,))), num_shards=1)
    with tf.Graph().as_default():
        found, other = flat.slices(layout, [tf.zeros([layout.size])])
    assert found.shape == [3]
    assert other.op.name == "dense/kernel", "names that can be are kept"
