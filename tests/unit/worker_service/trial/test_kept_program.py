"""Which data sets a worker of a study keeps from trial to trial, and which are made again as in a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.program_samples import sample_job

from psfleet.job.job import Job
from psfleet.job.program import load_program
from worker_service.batch_reader import Reading
from worker_service.training_data import TrainingData
from worker_service.trial.kept_program import KeptPrograms, Program

PROGRAM = """
import psfleet, tensorflow as tf

CALLS = []

def train(shard, num_shards):
    CALLS.append("train")
    examples = tf.data.Dataset.range(8)
    {random}
    return examples.map(lambda x: (tf.cast(x, tf.float32), 0.0))

def build():
    return psfleet.GraphProgram(loss=lambda batch: None, train=train)
"""


def job_of(folder: Path, name: str, random: str = "") -> Job:
    (folder / f"{name}.py").write_text(PROGRAM.format(random=random))
    return sample_job(batch_size=4, shuffle=0).model_copy(update={"program": f"{name}:build"})


def first_epochs(program: Program, job: Job) -> list[list[float]]:
    """What a worker reads in its first three epochs of two batches each."""
    batches = TrainingData.of_worker(program, job, 0).batches(0, Reading())
    return [[float(x) for _ in range(2) for x in next(batches)[0]] for _ in range(3)]


@pytest.mark.parametrize(
    "random",
    [
        pytest.param("examples = examples.map(lambda x: x + tf.random.uniform([], 0, 1 << 20, tf.int64))", id="noise"),
        pytest.param("examples = examples.shuffle(8)", id="shuffle"),
    ],
)
def test_random_data_differ_between_epochs_and_are_those_of_a_run_in_each_trial(tmp_path: Path, random: str) -> None:
    programs, job = KeptPrograms(tmp_path), job_of(tmp_path, "drawing", random)
    in_run = first_epochs(load_program(job, tmp_path), job)
    assert in_run[0] != in_run[1] != in_run[2]
    assert first_epochs(programs.load(job), job) == in_run
    assert first_epochs(programs.load(job), job) == in_run, "a second trial with the same options"


GENERATED = """
import itertools
import psfleet, tensorflow as tf

READ = []

def examples():
    for number in {numbers}:
        READ.append(number)
        assert len(READ) < 500, "read for ever"
        yield float(number), 0.0

def train(shard, num_shards):
    return tf.data.Dataset.from_generator(examples, output_signature=(tf.TensorSpec([]), tf.TensorSpec([])))

def build():
    return psfleet.GraphProgram(loss=lambda batch: None, train=train)
"""


def generated(folder: Path, name: str, numbers: str) -> Job:
    """A job of six steps of four examples of a Python generator."""
    (folder / f"{name}.py").write_text(GENERATED.format(numbers=numbers))
    job = sample_job(batch_size=4, shuffle=0)
    train = job.train.model_copy(update={"steps": 6})
    return job.model_copy(update={"program": f"{name}:build", "train": train})


def test_a_generator_that_never_ends_is_read_as_far_as_a_trial_goes(tmp_path: Path) -> None:
    programs, job = KeptPrograms(tmp_path), generated(tmp_path, "endless", "itertools.count()")
    expected = [[float(8 * epoch + x) for x in range(8)] for epoch in range(3)]
    for _ in range(2):
        assert first_epochs(programs.load(job), job) == expected


def test_a_generator_that_ends_is_read_once(tmp_path: Path) -> None:
    programs, job = KeptPrograms(tmp_path), generated(tmp_path, "short", "range(8)")
    for _ in range(2):
        assert first_epochs(programs.load(job), job) == [[float(x) for x in range(8)]] * 3
    read = sys.modules["short"].READ
    assert read == list(range(8))


def test_data_that_are_always_the_same_are_made_once(tmp_path: Path) -> None:
    programs, job = KeptPrograms(tmp_path), job_of(tmp_path, "constant")
    epochs = first_epochs(programs.load(job), job)
    assert epochs == [[float(x) for x in range(8)]] * 3
    assert first_epochs(programs.load(job), job) == epochs
    assert sys.modules["constant"].CALLS == ["train"]
