"""`psfleet.part`: what it assigns, what it refuses, and that it does nothing outside of psfleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet
from psfleet.errors import ProgramError
from psfleet.job.sections import Device
from psfleet.tf.parts import building, with_local_inputs
from psfleet.tf.server import server_config

DEVICES = ("/job:w/task:0", "/job:w/task:2")


def test_it_assigns_operations_and_their_gradients() -> None:
    with tf.Graph().as_default() as graph, building(2, DEVICES) as parts, tf.device(DEVICES[0]):
        x = v1.placeholder(tf.float32, [3])
        with psfleet.part(1):
            y = tf.tanh(x, name="second")
            with psfleet.part(0):
                z = tf.sin(y, name="first")
        tf.gradients(tf.reduce_sum(z), x)
        found = {op.name: op.device for op in graph.get_operations()}
    assert parts.used == {0, 1}
    assert {device for name, device in found.items() if "second" in name} == {DEVICES[1]}
    assert {device for name, device in found.items() if "first" in name} == {DEVICES[0]}
    assert any(name.startswith("gradients/second") for name in found)


def test_a_loop_gets_copies_of_what_comes_from_other_parts() -> None:
    with tf.Graph().as_default() as graph, building(2, DEVICES), tf.device(DEVICES[0]):
        start = v1.placeholder(tf.float32, [], name="start")
        with psfleet.part(1):
            count = tf.constant(0, name="count")
            arguments: Any = [count, start]
            functions = [each.get_concrete_function() for each in (_is_below_three, _next)]
            tf.raw_ops.StatelessWhile(input=arguments, cond=functions[0], body=functions[1], name="loop")
    definition = with_local_inputs(graph.as_graph_def())
    nodes = {node.name: node for node in definition.node}
    assert list(nodes["loop"].input) == ["count", "loop_input_1"]
    copy = nodes["loop_input_1"]
    assert (copy.op, list(copy.input), copy.device) == ("Identity", ["start"], DEVICES[1])


@tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)])
def _is_below_three(count: Any, value: Any) -> Any:
    del value
    return count < 3


@tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)])
def _next(count: Any, value: Any) -> Any:
    return count + 1, value * 2


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (-1, r"psfleet.part\(-1\): expected an integer from 0"),
        (1.0, r"psfleet.part\(1.0\): expected an integer from 0"),
        ("1", r"psfleet.part\('1'\): expected an integer from 0"),
        (True, r"psfleet.part\(True\): expected an integer from 0"),
        (None, r"psfleet.part\(None\): expected an integer from 0"),
    ],
)
def test_a_number_that_is_none_is_refused_everywhere(number: Any, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected), psfleet.part(number):
        pass


def test_a_part_that_the_job_does_not_have_is_refused() -> None:
    expected = r"psfleet.part\(5\): expected a number below fleet.parts = 2"
    with pytest.raises(ProgramError, match=expected), building(2), psfleet.part(5):
        pass


def test_an_integer_of_numpy_is_a_number_and_any_part_is_that_of_a_job_with_one() -> None:
    with tf.Graph().as_default(), building(1) as parts, psfleet.part(np.int64(5)):  # type: ignore[arg-type]
        assert not tf.zeros([]).device
    assert parts.used == set()


def test_a_part_without_operations_is_refused() -> None:
    with tf.Graph().as_default(), building(3) as parts:
        with psfleet.part(1):
            tf.zeros([])
        with psfleet.part(2):
            pass
    expected = r"program 'p:build': part 2 of fleet.parts = 3 has no operations, expected `with psfleet.part\(2\):`"
    with pytest.raises(ProgramError, match=expected):
        parts.require_all_used("p:build")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_outside_of_psfleet_a_model_is_built_trained_saved_and_loaded(tmp_path: Path) -> None:
    with psfleet.part(0):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with psfleet.part(7):
        model.add(keras.layers.Dense(1))
    model.compile(loss="mse", optimizer="sgd")
    x = np.ones((8, 3), np.float32)
    before = model.predict(x, verbose=0)
    model.fit(x, np.zeros((8, 1), np.float32), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert (loaded.predict(x, verbose=0) != before).all()
    with tf.Graph().as_default(), psfleet.part(1):
        assert not tf.zeros([]).device


@pytest.mark.parametrize(
    ("threads", "given", "has_parts", "expected"),
    [("1", None, True, 2), ("1", None, False, 1), ("3", None, True, 3), ("3", 1, True, 1)],
    ids=["one", "without parts", "more", "given"],
)
def test_a_second_thread_answers_other_parts_while_the_first_one_computes(
    threads: str, given: int | None, has_parts: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSFLEET_THREADS", threads)
    config = server_config(Device(inter_op_threads=given), has_parts)
    assert config.inter_op_parallelism_threads == expected
