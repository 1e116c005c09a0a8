"""A ps takes the steps of a program's optimizer as Keras does, from the graph of its update."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import optimizers as ko
from support.programs.own_optimizer_program import Cautious
from support.rows import first_rows

from ps_service.shard_graph import ShardGraph
from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import Job, parse_job
from psfleet.job.program import KerasProgram
from psfleet.layout import Layout, TensorSpec
from psfleet.tf import optimizers
from psfleet.tf.traced_update import TracedUpdate
from worker_service.program_optimizer import resolved

STEPS = 50
RATE = 0.05
MAX_DIFFERENCE = 1e-5
SPECS = (TensorSpec("kernel", (3, 2)), TensorSpec("bias", (2,)))
SIZE = 8
BUCKETS = (5, 3)
"""Sizes of the buckets, which cut the kernel."""

Make = Callable[[Any], Any]
CASES: dict[str, Make] = {
    "custom": Cautious,
    "nadam": lambda rate: ko.Nadam(rate, weight_decay=0.3, clipvalue=0.4),
    "amsgrad": lambda rate: ko.Adam(rate, amsgrad=True),
    "ftrl": lambda rate: ko.Ftrl(rate, l2_shrinkage_regularization_strength=0.1, beta=0.2),
}


def job_of(**optimizer: Any) -> Job:
    return parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"name": "program", **optimizer},
            "train": {"steps": 10, "batch_size": 4},
        }
    )


def traced(optimizer: Any, **options: Any) -> tuple[Job, TracedUpdate]:
    """The resolved job of an optimizer object, and the update as a ps receives it."""
    program = KerasProgram(model=keras.Sequential, loss="mse", train=lambda *_: None, optimizer=optimizer)
    job, update = resolved(program, job_of(**options), SPECS)
    assert update is not None
    return job, TracedUpdate.from_json(update.to_json())


@pytest.mark.parametrize("case", first_rows(CASES, 2))
def test_fifty_steps_in_two_buckets_are_those_of_keras(case: str) -> None:
    check_steps(CASES[case](RATE), CASES[case](RATE))


def test_fifty_conditional_steps_as_of_async_mode_are_those_of_keras() -> None:
    check_steps(ko.Nadam(RATE), ko.Nadam(RATE), is_async=True)


def test_rate_schedule_and_weight_decay_of_the_job_apply_to_the_programs_optimizer() -> None:
    falling = {"kind": "exponential", "decay_steps": 5, "decay_rate": 0.7}
    reference = ko.Nadam(ko.schedules.ExponentialDecay(RATE, 5, 0.7), weight_decay=0.3)
    check_steps(ko.Nadam(1.0), reference, learning_rate=RATE, schedule=falling, weight_decay=0.3)


def check_steps(optimizer: Any, reference: Any, is_async: bool = False, **options: Any) -> None:
    """Compares the weights after each step."""
    random = np.random.default_rng(3)
    sizes = 10.0 ** random.uniform(-4, 1, SIZE)
    gradients = (random.normal(size=(STEPS, SIZE)) * sizes).astype(np.float32)
    start = random.normal(size=SIZE).astype(np.float32)
    expected = trained_by_keras(reference, start, gradients)
    assert np.abs(expected[-1] - start).max() > 1000 * MAX_DIFFERENCE, "hardly trained"
    seen = trained(*traced(optimizer, **options), start, gradients, is_async)
    for step, (weights, wanted) in enumerate(zip(seen, expected, strict=True)):
        np.testing.assert_allclose(weights, wanted, rtol=0, atol=MAX_DIFFERENCE, err_msg=f"after step {step + 1}")


def trained(
    job: Job, update: TracedUpdate, start: np.ndarray, gradients: np.ndarray, is_async: bool
) -> list[np.ndarray]:
    """The weights after each step of the ps's optimizer; in async mode an update is conditional."""
    cuts = np.cumsum(BUCKETS)[:-1]
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        buckets = [
            v1.get_variable(f"bucket_{at}", initializer=part, use_resource=True)
            for at, part in enumerate(np.split(start, cuts))
        ]
        step = v1.get_variable("global_step", initializer=np.int64(0), use_resource=True, trainable=False)
        gradient = v1.placeholder(tf.float32, [SIZE])
        parts = tf.split(gradient, BUCKETS)
        rate = optimizers.learning_rate(job.optimizer, step.read_value())
        built = optimizers.build(job.optimizer, rate, update=update)

        def apply() -> tf.Tensor:
            with tf.control_dependencies([built.apply_gradients(list(zip(parts, buckets, strict=True)), step)]):
                return tf.constant(0)

        applied = tf.cond(step.read_value() >= 0, apply, lambda: tf.constant(0)) if is_async else apply()
        with tf.control_dependencies([applied]):
            after = tf.concat([bucket.read_value() for bucket in buckets], 0)
        initializer = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initializer)
        return [session.run(after, {gradient: row}) for row in gradients]


def trained_by_keras(optimizer: Any, start: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    """The same by Keras, with the tensors of the model."""
    cut = SPECS[0].size
    variables = [keras.Variable(start[:cut].reshape(SPECS[0].shape)), keras.Variable(start[cut:])]
    optimizer.build(variables)

    def step(gradient: tf.Tensor) -> tf.Tensor:
        optimizer.apply([tf.reshape(gradient[:cut], SPECS[0].shape), gradient[cut:]])
        return tf.concat([tf.reshape(variable.value.read_value(), [-1]) for variable in variables], 0)

    compiled = tf.function(step, autograph=False)
    return [compiled(tf.constant(row)).numpy() for row in gradients]


def test_a_shard_restores_slots_and_scalars_of_the_programs_optimizer() -> None:
    job, update = traced(ko.Nadam(RATE))
    content = content_of({"momentum": 2.0, "velocity": 3.0}, {"iterations": 7.0, "u_product": 0.25})
    found = restored(job, update, content)
    assert {name: float(value) for name, value in found.scalars.items()} == {"iterations": 7.0, "u_product": 0.25}
    assert {name: vector[0] for name, vector in found.slots.items()} == {"momentum": 2.0, "velocity": 3.0}


def test_a_shard_starts_without_state_from_that_of_an_optimizer_with_other_slots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job, update = traced(Cautious())
    with caplog.at_level(logging.WARNING, "psfleet.ps"):
        found = restored(job, update, content_of({"momentum": 2.0}, {"iterations": 7.0}))
    assert "optimizer program.Cautious starts without state" in caplog.text
    assert {name: vector[0] for name, vector in found.slots.items()} == {"move": 0.0, "size": 0.5}
    assert found.scalars["iterations"] == 0


LAYOUT = Layout.plan(SPECS, [], [], num_ps=1, bucket_bytes=64)


def content_of(slots: dict[str, float], scalars: dict[str, float]) -> ShardContent:
    size, none = LAYOUT.parameters.shard_size, np.zeros(0, np.uint8)
    vectors = {name: np.full(size, value, np.float32) for name, value in slots.items()}
    numbers = {name: np.array(value, np.float32) for name, value in scalars.items()}
    return ShardContent(np.ones(size, np.float32), vectors, numbers, none, none)


def restored(job: Job, update: TracedUpdate, content: ShardContent) -> ShardContent:
    """What a shard holds after it has restored a content."""
    graph = ShardGraph("", ShardPlan("run", 1, 0, job, LAYOUT, Path(), update), 7, content)
    try:
        graph.take_snapshot()
        return graph.read_snapshot()
    finally:
        graph.close()
