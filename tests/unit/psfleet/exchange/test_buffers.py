"""Buffers are used again, but never while anybody has an array of them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.exchange.buffers import MAX_FREE, BufferPool
from psfleet.exchange.message_layout import TensorKind
from psfleet.layout import ALIGNMENT_BYTES

KINDS = [TensorKind(np.dtype(np.int64), 3), TensorKind(np.dtype(np.float32), 1000)]


def test_arrays_have_their_types_and_sizes_and_are_aligned() -> None:
    pool = BufferPool(KINDS)
    numbers, values = pool.take()
    assert (numbers.dtype, numbers.size, values.dtype, values.size) == (np.int64, 3, np.float32, 1000)
    assert numbers.ctypes.data % ALIGNMENT_BYTES == 0
    assert values.ctypes.data % ALIGNMENT_BYTES == 0
    assert pool.num_bytes == 3 * 8 + 1000 * 4


def test_a_buffer_is_used_again_once_all_its_arrays_are_gone() -> None:
    pool = BufferPool(KINDS)
    numbers, values = pool.take()
    at = numbers.ctypes.data
    part = values[10:20].view(np.uint8)
    del numbers, values
    assert pool.take()[0].ctypes.data != at, "a slice of one of its arrays is left"
    del part
    assert pool.take()[0].ctypes.data == at


def test_a_pool_keeps_a_few_buffers_and_gives_out_any_number() -> None:
    pool = BufferPool(KINDS)
    taken = [pool.take() for _ in range(3 * MAX_FREE)]
    assert len({arrays[0].ctypes.data for arrays in taken}) == len(taken)
    del taken
    assert len({pool.take()[0].ctypes.data for _ in range(3 * MAX_FREE)}) <= MAX_FREE


def test_a_buffer_that_a_variable_of_tensorflow_shares_is_not_used_again() -> None:
    """An operation returns an array of the pool, and the variable keeps its memory without a copy."""
    pool = BufferPool([TensorKind(np.dtype(np.float32), 1 << 16)])

    def filled(value: np.ndarray) -> np.ndarray:
        (array,) = pool.take()
        array[:] = value
        return array

    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("kept", [1 << 16], initializer=v1.zeros_initializer(), use_resource=True)
        value = v1.placeholder(tf.float32, [])
        (array,) = [tf.ensure_shape(v1.py_func(filled, [value], tf.float32), [1 << 16])]
        assign, read = variable.assign(array, read_value=False), variable.read_value()[0]
        session.run(v1.global_variables_initializer())
        for step in range(1, 20):
            session.run(assign, {value: step})
            others = [pool.take() for _ in range(2)]
            for (other,) in others:
                other[:] = -1
            assert session.run(read) == step
