"""Times that are counted on a ps, by a clock that the test sets back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.updates.interface import timed
from psfleet.tf import secs_since


@pytest.mark.parametrize(("now", "counted"), [(107.5, 7.5), (100.0, 0.0), (40.0, 0.0)])
def test_a_time_that_is_counted_is_not_negative_if_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, now: float, counted: float
) -> None:
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(now, tf.float64))
    with tf.Graph().as_default(), v1.Session() as session:
        assert session.run(secs_since(tf.constant(100.0, tf.float64))) == counted


def test_the_counted_time_of_updates_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 40.0])
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(next(clock), tf.float64))
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.get_variable("update_secs", [], tf.float64, v1.constant_initializer(3.0), use_resource=True)
        variables: Any = SimpleNamespace(update_secs=counter)
        update = timed(variables, [tf.constant(1.0)], tf.no_op)
        session.run(counter.initializer)
        session.run(update)
        assert session.run(counter) == 3.0
