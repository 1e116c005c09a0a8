"""Programs that a worker keeps from trial to trial, with their data sets in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import tensorflow as tf

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from worker_service.random_data import is_random

Program = KerasProgram | GraphProgram


class KeptPrograms:
    """Loads the programs of trials; that of the newest options stays.

    The module is imported once. With the options of the trial before, its callable is not called again, and its data
    sets are read once. A program's own optimizer object can be used once, so such a program is made anew, on kept data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: tuple[str, Program] | None = None

    def load(self, job: Job) -> Program:
        """The program of a job.

        Raises: As `load_program`.
        """
        key = json.dumps([job.program, job.options], sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            program = load_program(job, self._folder)
            train, evaluate = program.train, program.evaluate
            self._kept = (
                key,
                replace(
                    program,
                    train=cache(lambda shard, num_shards: in_memory(train(shard, num_shards))),
                    evaluate=None if evaluate is None else cache(_reading(evaluate)),
                ),
            )
        elif self._kept[1].optimizer is not None:
            return replace(self._kept[1], optimizer=load_program(job, self._folder).optimizer)
        return self._kept[1]


def _reading(make: Callable[[], tf.data.Dataset]) -> Callable[[], tf.data.Dataset]:
    return lambda: in_memory(make())


def in_memory(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The examples of a data set, read from its files once; one that is random or endless is returned as it is."""
    if not isinstance(dataset, tf.data.Dataset) or is_random(dataset):
        return dataset
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        return dataset
    cached = dataset.cache()
    # The cache keeps nothing of an iteration that does not reach the end.
    count = cached.reduce(np.int64(0), tf.autograph.experimental.do_not_convert(lambda count, *_: count + 1))
    return cached.apply(tf.data.experimental.assert_cardinality(int(count)))
