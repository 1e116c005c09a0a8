"""TensorFlow's global seed has one owner at a time, and nobody waits for ever for a block that does not end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import tensorflow as tf

from psfleet.errors import DataStallError
from psfleet.tf.global_seed import data_seed, trace_seed

DEADLINE_SECS = 30.0


@contextmanager
def blocked_data() -> Iterator[Callable[[], bool | None]]:
    """Another thread is in a block of `data_seed`. Yields a function that ends it: whether it kept its seed."""
    entered, gate, kept = threading.Event(), threading.Event(), []

    def block() -> None:
        with data_seed(1, DEADLINE_SECS) as is_kept:
            entered.set()
            gate.wait(DEADLINE_SECS)
            kept.append(is_kept())

    thread = threading.Thread(target=block, daemon=True)

    def end() -> bool | None:
        gate.set()
        thread.join(DEADLINE_SECS)
        return kept[0] if kept else None

    thread.start()
    assert entered.wait(DEADLINE_SECS), "the first block did not begin"
    try:
        yield end
    finally:
        end()


def test_data_wait_for_the_data_of_another_thread_up_to_their_deadline() -> None:
    with blocked_data() as end:
        message = r"gave up after 0.05 s waiting for another call of train\(\)"
        with pytest.raises(DataStallError, match=message), data_seed(2, 0.05):
            pytest.fail("two blocks at a time")
        assert end() is True, "the seed was not touched"
    with data_seed(2, 0.05) as is_kept:
        assert is_kept()


def test_a_trace_does_not_wait_for_ever_for_a_block_that_then_learns_of_it() -> None:
    with blocked_data() as end:
        with trace_seed(3, 0.05):
            traced = tf.function(lambda: tf.random.uniform([])).get_concrete_function()
        assert traced.graph.seed == 3
        assert end() is False
    with data_seed(2, 0.05):
        pass


def test_a_block_that_raises_ends() -> None:
    with pytest.raises(ValueError, match="boom"), data_seed(1, 0.05):
        raise ValueError("boom")
    with pytest.raises(ValueError, match="boom"), trace_seed(1, 0.05):
        raise ValueError("boom")
    with data_seed(2, 0.05) as is_kept:
        assert is_kept()
