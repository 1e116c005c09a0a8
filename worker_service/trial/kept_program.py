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
from worker_service.random_data import is_random

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

    def load(self, job: Job) -> Program:
        """The program of a job.

        Raises: As `load_program`.
        """
        key = json.dumps([job.program, job.options], sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            program = load_program(job, self._folder)
            evaluate = None if program.evaluate is None else kept(program.evaluate)
            self._kept = key, replace(program, train=kept(program.train), evaluate=evaluate)
        elif self._kept[1].optimizer is not None:
            return replace(self._kept[1], optimizer=load_program(job, self._folder).optimizer)
        return self._kept[1]


def kept(make: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """The same function, which makes each data set that can be kept once: it is read into memory.

    One that is random, or endless, is made again by each call, as in a run: its random numbers follow from the global
    seed that TensorFlow has then, which is another one for each epoch.
    """
    found: dict[tuple[int, ...], tf.data.Dataset] = {}

    def data(*arguments: int) -> tf.data.Dataset:
        if arguments in found:
            return found[arguments]
        made = make(*arguments)
        if not _can_be_kept(made):
            return made
        found[arguments], _, _ = read_once(made)
        return found[arguments]

    return data


def _can_be_kept(made: Any) -> bool:
    """Whether a program has made a data set that one reading has whole, and that is the same at each reading."""
    if not isinstance(made, tf.data.Dataset) or is_random(made):
        return False
    return bool(made.cardinality() != tf.data.INFINITE_CARDINALITY)
