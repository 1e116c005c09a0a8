"""The calls of a step: each has a deadline of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from worker_service.step_calls import StepCalls


class CountingWatch:
    """Counts the calls that it watches, of which one runs at a time."""

    def __init__(self) -> None:
        self.is_running, self.calls = False, 0
        self.seen: list[bool] = []

    def look(self, value: np.ndarray) -> np.ndarray:
        """An operation of a call."""
        self.seen.append(self.is_running)
        return value

    def __enter__(self) -> None:
        assert not self.is_running
        self.is_running, self.calls = True, self.calls + 1

    def __exit__(self, *error: object) -> None:
        self.is_running = False


def calls_of(session: v1.Session, watch: CountingWatch, step: Any, num_microbatches: int = 1) -> StepCalls:
    sessions: Any = SimpleNamespace(own=session, of_steps=lambda options: options)
    counting: Any = watch
    return StepCalls(sessions, counting, step, num_microbatches, v1.RunOptions(), v1.RunOptions())


def step_of(
    graph: tf.Graph, batch: tf.Tensor, numbers: Sequence[tf.Tensor], steps: list[list[tf.Tensor]], **changes: Any
) -> Any:
    """A step of one loss.

    Args:
        numbers: Placeholders of the local step, the number, and the microbatch.
    """
    local_step, number, microbatch = numbers
    absent = {"session_number": None, "local_update": None, "wants_norm": None, "gradient_norm": None}
    fed = {"feeds": [batch], "local_step": local_step, "number": number, "microbatch": microbatch}
    return SimpleNamespace(graph=graph, steps=steps, order=[0], **{"accumulate": [], **absent, **fed, **changes})


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_each_microbatch_is_watched_on_its_own(num_microbatches: int) -> None:
    """A batch of many takes as long as they all."""
    watch = CountingWatch()
    with tf.Graph().as_default() as graph:
        batch = v1.placeholder(tf.float32, [1])
        numbers = [v1.placeholder(tf.int64, []) for _ in range(3)]
        loss = tf.reduce_sum(tf.reshape(tf.numpy_function(watch.look, [batch], tf.float32), [1]))
        shards = tf.identity(numbers[1])
    accumulate = [loss] if num_microbatches > 1 else []
    step = step_of(graph, batch, numbers, [[loss, shards]], accumulate=accumulate)
    with v1.Session(graph=graph) as session:
        calls = calls_of(session, watch, step, num_microbatches)
        mean, _ = calls.train(
            [np.arange(num_microbatches, dtype=np.float32)], 0, 5, wants_norm=False, may_abandon=False
        )
    assert mean == (num_microbatches - 1) / 2
    assert watch.seen == [True] * num_microbatches
    assert watch.calls == num_microbatches


def test_local_updates_and_their_exchanges_are_watched() -> None:
    watch = CountingWatch()
    with tf.Graph().as_default() as graph:
        batch = v1.placeholder(tf.float32, [])
        numbers = [v1.placeholder(tf.int64, []) for _ in range(3)]
        update = tf.reshape(tf.numpy_function(watch.look, [batch], tf.float32), [])
        shards = tf.numpy_function(watch.look, [numbers[0]], tf.int64)
    step = step_of(graph, batch, numbers, [[shards]], local_update=update)
    with v1.Session(graph=graph) as session:
        calls = calls_of(session, watch, step)
        assert calls.update_locally([np.float32(7.0)], 5, wants_norm=False) == 7
        assert calls.exchange(3) == 3
    assert watch.seen == [True, True]
    assert watch.calls == 2
