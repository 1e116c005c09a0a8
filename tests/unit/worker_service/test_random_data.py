"""Random data: a batch is a function of the seed, the worker and its number, whatever the process did before."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import Stepper, sample_job
from support.rows import first_rows

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.sections import Deadlines
from worker_service.batch_reader import Reading, ReadingClosedError
from worker_service.frontends import FrontEnd, front_end
from worker_service.training_data import TrainingData

NUM_SHARDS = 2
Train = Callable[[int, int], tf.data.Dataset]


def data(train: Train, rotates: bool = False, index: int = 1, **deadlines: float) -> TrainingData:
    job = sample_job().model_copy(update={"deadlines": Deadlines(**deadlines)})
    return TrainingData(GraphProgram(loss=lambda batch: batch, train=train), job, index, NUM_SHARDS, rotates)


def first(count: int, worker: TrainingData, start: int = 0) -> list[tuple[int, ...]]:
    return [tuple(batch.tolist()) for (batch,) in itertools.islice(worker.batches(start), count)]


def keras_front(slow_secs: float) -> FrontEnd:
    """Of a model of one layer, in a job whose traces wait for so long."""
    examples = tf.data.Dataset.from_tensor_slices((np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)))
    program = KerasProgram(
        model=lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]),
        loss="mse",
        train=lambda shard, shards: examples,
    )
    return front_end(program, sample_job().model_copy(update={"deadlines": Deadlines(slow_secs=slow_secs)}), 1, 0)


@tf.autograph.experimental.do_not_convert  # takes longer than a test that reads the data
def one_in_two(example: tf.Tensor) -> tf.Tensor:
    return tf.random.uniform([]) < 0.5


def half(shard: int, shards: int) -> tf.data.Dataset:
    """About half of 48 numbers: each epoch has other ones, and another number of them."""
    return tf.data.Dataset.range(48).filter(one_in_two)


def shuffled(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(20).shuffle(20)


def shuffled_half(shard: int, shards: int) -> tf.data.Dataset:
    return half(shard, shards).shuffle(20)


@pytest.mark.parametrize(
    ("train", "rotates"), first_rows([(shuffled_half, True), (half, True), (half, False), (shuffled, False)])
)
def test_a_batch_is_the_same_in_this_process_and_in_a_new_one(train: Train, rotates: bool) -> None:
    """At the beginning and in the middle of the first epoch, and in a later one."""
    stayed = data(train, rotates)
    unbroken = first(20, stayed)
    for start in (0, 3, 16):
        expected = unbroken[start : start + 3]
        assert first(3, stayed, start) == expected, f"again from {start} on"
        assert first(3, data(train, rotates), start) == expected, f"a new process from {start} on"
    assert first(20, stayed) == unbroken


def test_what_a_new_start_would_skip_is_known_for_epochs_of_different_lengths() -> None:
    calls: list[int] = []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        return half(shard, shards)

    worker = data(train)
    first(40, worker)
    lengths = [count for count in (worker.num_skipped(start) for start in range(40)) if count is not None]
    calls.clear()
    starts = [at for at, skipped in enumerate(lengths) if skipped == 0]
    assert len(lengths) == 40
    assert len({after - before for before, after in itertools.pairwise(starts)}) > 1, "epochs have different lengths"
    assert not calls


def test_a_train_that_returns_another_length_in_another_epoch_is_refused_in_one_line() -> None:
    sizes = itertools.chain([12], itertools.repeat(20))

    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(next(sizes)).shuffle(4)

    with pytest.raises(ProgramError) as caught:
        first(10, data(train))
    assert str(caught.value) == (
        "program 'program:build': train(1, 2) returned 20 examples for epoch 1 and 12 for epoch 0, "
        "expected as many for each"
    )


def test_that_train_is_called_for_each_epoch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "psfleet.worker")
    worker = data(shuffled)
    first(5, worker)
    assert not caplog.records
    first(20, worker)
    assert [(vars(record)["event"], record.getMessage()[:58]) for record in caplog.records] == [
        ("random_data", "the data are random: train() is called for each epoch, fro")
    ]


@pytest.mark.parametrize(("slow_secs", "calls_expected"), [(60.0, 1), (0.05, 2)])
def test_a_trace_during_a_call_of_train_does_not_change_the_data(slow_secs: float, calls_expected: int) -> None:
    """It waits; after `slow_secs` it continues, and `train` is called again."""
    expected, calls, threads = first(8, data(shuffled)), [], []
    front = keras_front(slow_secs)

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        if len(calls) == 1:
            threads.append(threading.Thread(target=Stepper.of, args=(front,), daemon=True))
            threads[0].start()
            threads[0].join(60.0 if slow_secs < 1 else 0.5)
        return shuffled(shard, shards)

    assert first(5, data(train)) == expected[:5]
    assert len(calls) == calls_expected
    threads[0].join(60.0)
    assert not threads[0].is_alive(), "the trace did not continue after the call of train"


def test_what_a_closed_reader_made_is_discarded() -> None:
    reading, calls = Reading(), []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        reading.is_closed = True
        return shuffled(shard, shards)

    worker = data(train)
    with pytest.raises(ReadingClosedError):
        next(worker.batches(0, reading))
    assert worker.num_skipped(0) is None
    assert first(5, worker) == first(5, data(shuffled))
    assert calls == [1, 1]


LAYER = keras.layers.GaussianNoise(1.0)
"""Made once in the process, as a module or a program makes it."""


def drawn_by_a_layer(example: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(LAYER(tf.zeros([]), training=True), tf.int32)


def drawn_by_a_generator() -> Callable[[tf.Tensor], tf.Tensor]:
    """Draws from a generator that begins with the same state in each call of `train`."""
    generator = tf.random.Generator.from_seed(1)
    return lambda example: generator.uniform([], maxval=1 << 30, dtype=tf.int32)


RANDOM_DATA: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "map": lambda examples: examples.map(lambda x: tf.random.uniform([], maxval=1 << 30, dtype=tf.int32)),
    "keras": lambda examples: examples.map(drawn_by_a_layer),
    "shuffle": lambda examples: examples.shuffle(20),
    "generator": lambda examples: examples.map(drawn_by_a_generator()),
    "inside": lambda examples: examples.batch(20).flat_map(lambda x: tf.data.Dataset.from_tensor_slices(x).shuffle(20)),
}


@pytest.mark.parametrize("rotates", first_rows([True, False]))
@pytest.mark.parametrize("kind", first_rows(RANDOM_DATA, 3))
def test_random_data_differ_by_epoch_and_shard_and_are_repeated_by_a_process_that_starts_again(
    kind: str, rotates: bool
) -> None:
    def train(shard: int, shards: int) -> tf.data.Dataset:
        made = RANDOM_DATA[kind](tf.data.Dataset.range(20))
        return made.apply(tf.data.experimental.assert_cardinality(20))

    steps = 15 if not rotates else 40
    found = first(steps, data(train, rotates))
    epochs = {tuple(found[start : start + 5]) for start in range(0, steps, 5)}
    assert len(epochs) == steps // 5, "each epoch has its own random numbers"
    assert set(found).isdisjoint(first(5, data(train, index=0))), "another shard has others"
    assert first(7, data(train, rotates), start=8) == found[8:15]


LAYERS = """
import keras, sys, tensorflow as tf
from test_random_data import data, first

def train(shard, shards):
    layers = [keras.layers.GaussianNoise(1.0) for _ in range(6)]
    def noisy(number):
        for factor, layer in enumerate(layers, 1):
            number += layer(tf.zeros([]), training=True) * 10.0**factor
        return tf.bitcast(number, tf.int32)
    return tf.data.Dataset.range(20).map(lambda x: noisy(tf.cast(x, tf.float32)))

rubbish = [object() for _ in range(int(sys.argv[1]))]
print(first(7, data(train)))
"""
"""In each process the layers lie elsewhere in memory."""


def test_several_generators_draw_the_same_numbers_in_each_process() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = {
        subprocess.run(
            [sys.executable, "-c", LAYERS, str(size)], env={**os.environ, "PYTHONPATH": path}, check=True,
            capture_output=True, text=True, timeout=120,
        ).stdout
        for size in (0, 54321)
    }  # fmt: skip
    assert len(found) == 1
    assert "," in found.pop()


@pytest.mark.parametrize("kind", ["stateless", "fixed shuffle", "plain"])
def test_data_without_random_numbers_are_made_once(kind: str) -> None:
    calls: list[int] = []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        examples = tf.data.Dataset.range(20)
        if kind == "stateless":
            return examples.map(lambda x: tf.random.stateless_uniform([], [1, x], dtype=tf.float32))
        return examples.shuffle(9, reshuffle_each_iteration=False) if kind == "fixed shuffle" else examples

    first(15, data(train))
    assert calls == [1]
