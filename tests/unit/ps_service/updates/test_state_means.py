"""The arithmetic of averaged state: what no worker changed keeps its bits, and finite numbers stay finite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from support.chief_samples import sample_job

from ps_service.updates.state import StateUpdate, state_share
from psfleet.layout import Layout, TensorSpec

DTYPES = ("float16", "float32", "float64")
WORKER = tf.constant(1)


class Shard:
    """A shard whose state is one tensor."""

    def __init__(self, before: np.ndarray) -> None:
        layout = Layout.plan([], [TensorSpec("mean", before.shape, before.dtype.name)], [], 1, 4096)
        self._flat = layout.state
        variables = SimpleNamespace(state=tf.Variable(self._bytes(before)), state_ranges=layout.state_ranges(0))
        self._update = StateUpdate(cast(Any, variables))

    def _bytes(self, value: np.ndarray) -> np.ndarray:
        return self._flat.pack({"mean": value})

    def after(self, *pushed: np.ndarray) -> np.ndarray:
        """The tensor after a step in sync mode to which these were pushed; None is a push that is dropped."""
        means = self._update.initial_means()
        for number, value in enumerate(pushed):
            for dropped in (value * 0 + 7, value):
                is_admitted, contributors = tf.constant(dropped is value), tf.constant([number, 0], tf.int64)
                state = [tf.constant(self._bytes(dropped))]
                means = self._update.added(means, state, WORKER, is_admitted, contributors)
        return self._flat.unpack(self._update.joined(means)[0].numpy())["mean"]

    def moved(self, pushed: np.ndarray, share: float) -> np.ndarray:
        """The tensor after a gradient in async mode."""
        [state] = self._update.moved([tf.constant(self._bytes(pushed))], WORKER, tf.constant(share))
        return self._flat.unpack(state.numpy())["mean"]


def any_numbers(dtype: str) -> np.ndarray:
    """Of all magnitudes and both signs, with zeros, the smallest and the largest."""
    limits = np.finfo(dtype)
    generator = np.random.default_rng(0)
    mantissas, exponents = generator.uniform(-2, 2, 1000), generator.integers(limits.minexp, limits.maxexp - 1, 1000)
    edges = [0.0, -0.0, limits.tiny, limits.smallest_subnormal, limits.max, limits.min]
    return np.concatenate([np.ldexp(mantissas, exponents), edges]).astype(dtype)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_that_no_worker_changed_keeps_its_bits(dtype: str, workers: int) -> None:
    value = any_numbers(dtype)
    shard = Shard(np.full_like(value, 3))
    assert shard.after(*[value] * workers).tobytes() == value.tobytes()
    assert Shard(value).moved(value, 1 / workers).tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_large_numbers_is_finite(dtype: str) -> None:
    largest = np.finfo(dtype).max
    assert Shard(np.zeros(1, dtype)).after(*[np.full(1, largest)] * 3) == largest
    mean = Shard(np.zeros(1, dtype)).after(*[np.full(1, sign * largest, dtype) for sign in (1, -1, 1)])
    np.testing.assert_allclose(mean / largest, [1 / 3], rtol=1e-3)
    moved = Shard(np.full(1, largest)).moved(np.full(1, -largest, dtype), 0.25)
    np.testing.assert_allclose(moved / largest, [0.5], rtol=1e-3)


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_the_mean_is_that_of_numpy_and_lies_between_the_values(workers: int) -> None:
    values = np.random.default_rng(workers).normal(5, 2, (workers, 1000)).astype(np.float32)
    mean = Shard(np.zeros(1000, np.float32)).after(*values)
    np.testing.assert_allclose(mean, values.astype(np.float64).mean(axis=0), rtol=1e-5, atol=1e-6)
    near = np.nextafter(values[0], np.float32(np.inf))
    mean = Shard(np.zeros(1000, np.float32)).after(*[values[0], near] * workers)
    assert np.all((values[0] <= mean) & (mean <= near))


def test_the_chief_alone_decides_the_state_of_the_warm_up_and_then_each_worker_has_an_equal_share() -> None:
    share = state_share(sample_job(fleet={"workers": 4}, update={"mode": "async", "warmup_steps": 3}))
    shares = [float(share(tf.constant(step, tf.int64))) for step in (0, 2, 3, 99)]
    assert shares == [1.0, 1.0, 0.25, 0.25]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_share_of_one_takes_the_pushed_value_bit_for_bit(dtype: str) -> None:
    """During the warm-up, and with one worker: whatever was before, however large."""
    value = any_numbers(dtype)
    assert Shard(value[::-1].copy()).moved(value, 1.0).tobytes() == value.tobytes()
