"""Gradient accumulation: several batches in one gradient give the update of one batch as large as all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.graph_fleet import graph_fleet
from support.program_samples import sample_job

from psfleet.errors import LostPeerError, ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.tf.program_data import built_model
from worker_service.frontends import FrontEnd, front_end
from worker_service.training_data import TrainingData

K, SIZE, STEPS, WORKERS, RATE = 3, 2, 3, 2, 0.5
generator = np.random.default_rng(3)
X = generator.normal(size=(STEPS, WORKERS, K * SIZE, 4)).astype(np.float32)
Y = generator.normal(size=(STEPS, WORKERS, K * SIZE, 1)).astype(np.float32)


def dense() -> keras.Model:
    hidden = layers.Dense(2, "tanh", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1)])


def noisy() -> keras.Model:
    """Its state and its random numbers differ from microbatch to microbatch."""
    hidden = [layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.3)]
    return keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(1)])


def keras_program(model: Callable[[], keras.Model]) -> KerasProgram:
    data = tf.data.Dataset.from_tensor_slices((X.reshape(-1, 4), Y.reshape(-1, 1)))
    return KerasProgram(model=model, loss="mse", train=lambda shard, shards: data)


def graph_program() -> GraphProgram:
    def loss(batch: Any) -> tf.Tensor:
        x, y = batch
        return tf.reduce_mean(tf.square(tf.tanh(x @ tf.compat.v1.get_variable("w", [4, 1])) - y))

    data = tf.data.Dataset.from_tensor_slices((X.reshape(-1, 4), Y.reshape(-1, 1)))
    return GraphProgram(loss=loss, train=lambda shard, shards: data)


def sections(accumulate: int, **update: Any) -> dict[str, Any]:
    size = SIZE * (K if accumulate == 1 else 1)
    return {
        "optimizer": {"name": "sgd", "learning_rate": RATE, "clip_norm": 1.0},
        "train": {"steps": 20, "batch_size": size, "accumulate": accumulate, "seed": 7},
        "update": update,
    }


def front_of(program: Any, accumulate: int) -> FrontEnd:
    job = parse_job({"name": "sample", "program": "program:build", **sections(accumulate)})
    return front_end(program, job, 1, 0)


def trained(program: Any, accumulate: int, num_workers: int) -> tuple[list[list[float]], dict[str, np.ndarray]]:
    """The losses by step and worker, and all tensors, after steps of a fleet."""
    front, losses = front_of(program, accumulate), []
    sized = {**sections(accumulate), "fleet": {"workers": num_workers}}
    with graph_fleet(1, front, front.initial_values(), **sized) as fleet, ExitStack() as stack:
        workers = [stack.enter_context(fleet.worker(index)) for index in range(num_workers)]
        for step in range(STEPS):
            pushed = [
                worker.threads.submit(worker.session.train, (X[step, index], Y[step, index]), step, step)
                for index, worker in enumerate(workers)
            ]
            fleet.advance()
            losses.append([step.result(30)[0] for step in pushed])
        parameters = workers[0].session.parameters()
        return losses, {**fleet.layout.parameters.unpack(parameters), **fleet.state()}


@pytest.mark.parametrize(
    ("program", "num_workers"), [(keras_program(dense), 1), (graph_program(), WORKERS)], ids=["keras", "graph"]
)
def test_accumulated_steps_are_those_of_batches_as_large(program: Any, num_workers: int) -> None:
    (losses, values), (expected_losses, expected) = (trained(program, accumulate, num_workers) for accumulate in (K, 1))
    np.testing.assert_allclose(losses, expected_losses, rtol=0, atol=1e-5)
    for name, tensor in expected.items():
        np.testing.assert_allclose(values[name], tensor, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.extended
def test_state_and_random_numbers_are_those_of_keras_with_gradient_accumulation() -> None:
    model = built_model(keras_program(noisy), sample_job())
    optimizer = keras.optimizers.SGD(RATE, global_clipnorm=1.0, gradient_accumulation_steps=K)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    for step in range(STEPS):
        for part in range(K):
            rows = slice(part * SIZE, (part + 1) * SIZE)
            model.train_on_batch(X[step, 0, rows], Y[step, 0, rows])
    _, values = trained(keras_program(noisy), K, num_workers=1)
    for variable in model.variables:
        np.testing.assert_allclose(values[variable.path], variable.numpy(), rtol=0, atol=1e-5, err_msg=variable.path)


def test_a_batch_whose_worker_was_lost_in_its_middle_begins_anew() -> None:
    """A call that fails leaves a part of the sum: the next try of the step must not contain it."""
    program = keras_program(dense)
    front = front_of(program, K)
    with graph_fleet(1, front, front.initial_values(), **sections(K)) as fleet, fleet.worker(0) as worker:
        broken = X[0, 0].copy()
        broken[-1] = np.nan
        with pytest.raises((ProgramError, LostPeerError)):
            worker.session.train((broken, Y[0, 0]), 0, 0)
        pushed = worker.threads.submit(worker.session.train, (X[0, 0], Y[0, 0]), 0, 0)
        fleet.advance()
        pushed.result(30)
        values = fleet.layout.parameters.unpack(worker.session.parameters())
    model = built_model(program, sample_job())
    model.compile(keras.optimizers.SGD(RATE, global_clipnorm=1.0), loss="mse")
    model.train_on_batch(X[0, 0], Y[0, 0])
    for variable in model.trainable_variables:
        np.testing.assert_allclose(values[variable.path], variable.numpy(), rtol=0, atol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize("start", [0, 5])
def test_a_worker_reads_the_examples_of_batches_as_large(start: int) -> None:
    """Shuffled, from any batch on, over epochs that no number of batches fills, and over changing shards."""

    def read(job: Job) -> list[Sequence[np.ndarray]]:
        data = tf.data.Dataset.range(29)
        program = GraphProgram(loss=lambda batch: batch, train=lambda shard, shards: data.shard(shards, shard))
        batches = TrainingData(program, job, 1, 2, rotates=True).batches(start)
        return [next(batches) for _ in range(8)]

    accumulated = read(sample_job(batch_size=SIZE, accumulate=K, shuffle=8))
    np.testing.assert_array_equal(accumulated, read(sample_job(batch_size=SIZE * K, shuffle=8)))


def test_a_shard_that_is_smaller_than_a_gradient_is_refused() -> None:
    program = GraphProgram(loss=lambda batch: batch, train=lambda shard, shards: tf.data.Dataset.range(5))
    batches = TrainingData(program, sample_job(batch_size=SIZE, accumulate=K), 0, 1, rotates=False).batches(0)
    with pytest.raises(ProgramError, match=r"5 examples, expected at least train.batch_size \* train.accumulate = 6"):
        next(batches)
