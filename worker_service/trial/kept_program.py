"""Programs that a worker keeps from trial to trial, with their data sets in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from worker_service.examples_in_memory import read_once
from worker_service.random_data import calls_python, is_random

Program = KerasProgram | GraphProgram


class KeptPrograms:
    """Loads the programs of trials; that of the newest options stays.

    The module is imported once. With the options of the trial before, its callable is not called again, and its data
    sets are read once; see `kept`. A program's own optimizer object can be used once, so such a program is made anew,
    on kept data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: tuple[str, Program] | None = None
        # The number of examples that the newest trial reads at most.
        self._needed = 0

    def load(self, job: Job) -> Program:
        """The program of a job.

        Raises: As `load_program`.
        """
        self._needed = job.train.steps * job.train.gradient_examples + job.train.shuffle
        key = json.dumps([job.program, job.options], sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            program = load_program(job, self._folder)
            evaluate = None if program.evaluate is None else kept(program.evaluate)
            self._kept = key, replace(program, train=kept(program.train, lambda: self._needed), evaluate=evaluate)
        elif self._kept[1].optimizer is not None:
            return replace(self._kept[1], optimizer=load_program(job, self._folder).optimizer)
        return self._kept[1]


def kept(
    make: Callable[..., tf.data.Dataset], needed: Callable[[], int] | None = None
) -> Callable[..., tf.data.Dataset]:
    """The same function, which makes each data set that can be kept once: it is read into memory.

    One that is random, or endless, is made again by each call, as in a run: its random numbers follow from the global
    seed that TensorFlow has then, which is another one for each epoch. A Python generator may be endless without
    TensorFlow knowing it: if it has more than `needed` examples, it is made again, too.
    """
    found: dict[tuple[int, ...], tf.data.Dataset] = {}
    # By arguments, the number of examples that a generator has at least.
    longer: dict[tuple[int, ...], int] = {}

    def data(*arguments: int) -> tf.data.Dataset:
        if arguments in found:
            return found[arguments]
        made = make(*arguments)
        if not _can_be_kept(made):
            return made
        if needed is not None and made.cardinality() == tf.data.UNKNOWN_CARDINALITY and calls_python(made):
            if longer.get(arguments, -1) < needed():
                short = _read_up_to(made, needed())
                if short is not None:
                    found[arguments] = short
                    return short
                longer[arguments] = needed()
            return made
        found[arguments], _, _ = read_once(made)
        return found[arguments]

    return data


def _read_up_to(dataset: tf.data.Dataset, limit: int) -> tf.data.Dataset | None:
    """The same examples, read once and held in memory; None if there are more."""
    cached, count = dataset.cache(), 0
    for _ in cached:
        count += 1
        if count > limit:
            return None
    return cached.apply(tf.data.experimental.assert_cardinality(count))


def _can_be_kept(made: Any) -> bool:
    """Whether a program has made a data set that one reading has whole, and that is the same at each reading."""
    if not isinstance(made, tf.data.Dataset) or is_random(made):
        return False
    return bool(made.cardinality() != tf.data.INFINITE_CARDINALITY)
