"""The calls of a step: each has a deadline of its own."""

from __future__ import annotations

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

    def __enter__(self) -> None:
        assert not self.is_running
        self.is_running, self.calls = True, self.calls + 1

    def __exit__(self, *error: object) -> None:
        self.is_running = False


def calls_of(session: v1.Session, watch: CountingWatch, step: Any, num_microbatches: int = 1) -> StepCalls:
    sessions: Any = SimpleNamespace(own=session, of_steps=lambda options: options)
    counting: Any = watch
    return StepCalls(sessions, counting, step, num_microbatches, v1.RunOptions(), v1.RunOptions())


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_each_microbatch_is_watched_on_its_own(num_microbatches: int) -> None:
    """A batch of many takes as long as they all."""
    watch = CountingWatch()
    seen: list[bool] = []

    def look(value: np.ndarray) -> np.ndarray:
        seen.append(watch.is_running)
        return value

    with tf.Graph().as_default() as graph:
        batch = v1.placeholder(tf.float32, [1])
        numbers = [v1.placeholder(tf.int64, []) for _ in range(3)]
        loss = tf.reduce_sum(tf.reshape(tf.numpy_function(look, [batch], tf.float32), [1]))
        shards = tf.identity(numbers[1])
    step: Any = SimpleNamespace(
        graph=graph,
        feeds=[batch],
        local_step=numbers[0],
        number=numbers[1],
        microbatch=numbers[2],
        accumulate=[loss] if num_microbatches > 1 else [],
        steps=[[loss, shards]],
        order=[0],
        session_number=None,
        local_update=None,
        wants_norm=None,
        gradient_norm=None,
    )
    with v1.Session(graph=graph) as session:
        calls = calls_of(session, watch, step, num_microbatches)
        mean, _ = calls.train(
            [np.arange(num_microbatches, dtype=np.float32)], 0, 5, wants_norm=False, may_abandon=False
        )
    assert mean == (num_microbatches - 1) / 2
    assert seen == [True] * num_microbatches
    assert watch.calls == num_microbatches


def test_local_updates_and_their_exchanges_are_watched() -> None:
    watch = CountingWatch()
    seen: list[bool] = []

    def look(value: np.ndarray) -> np.ndarray:
        seen.append(watch.is_running)
        return value

    with tf.Graph().as_default() as graph:
        batch, local_step = v1.placeholder(tf.float32, []), v1.placeholder(tf.int64, [])
        number, microbatch = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [])
        update = tf.reshape(tf.numpy_function(look, [batch], tf.float32), [])
        shards = tf.numpy_function(look, [local_step], tf.int64)
    step: Any = SimpleNamespace(
        graph=graph,
        feeds=[batch],
        local_step=local_step,
        number=number,
        microbatch=microbatch,
        accumulate=[],
        steps=[[shards]],
        order=[0],
        session_number=None,
        local_update=update,
        wants_norm=None,
        gradient_norm=None,
    )
    with v1.Session(graph=graph) as session:
        calls = calls_of(session, watch, step)
        assert calls.update_locally([np.float32(7.0)], 5, wants_norm=False) == 7
        assert calls.exchange(3) == 3
    assert seen == [True, True]
    assert watch.calls == 2
