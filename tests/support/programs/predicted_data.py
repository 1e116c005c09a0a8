"""Data sets for `psfleet predict`, whose workers can be held or ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 10
LOOK_SECS = 0.02
FOREVER = threading.Event()


def features() -> np.ndarray:
    """Of all examples: `[NUM_EXAMPLES, 2]` float32; one has a NaN."""
    values = np.arange(2 * NUM_EXAMPLES, dtype=np.float32).reshape([NUM_EXAMPLES, 2])
    values[3, 1] = np.nan
    return values


def labelled() -> tf.data.Dataset:
    """Features with labels."""
    return tf.data.Dataset.from_tensor_slices((features(), np.zeros(NUM_EXAMPLES)))


def held() -> tf.data.Dataset:
    """Features without labels; beside this file `readers` has the process ids, and nothing comes while `hold` is there.

    A process finds a file `end` once, and calls `os._exit` with the code in it.
    """
    folder = Path(__file__).parent

    def rows() -> Iterator[np.ndarray]:
        with (folder / "readers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        yield from features()[:4]
        while (folder / "hold").exists():
            FOREVER.wait(LOOK_SECS)
        if (folder / "end").exists():
            os._exit(int((folder / "end").read_text()))
        yield from features()[4:]

    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([2], tf.float32))


def held_in_container() -> tf.data.Dataset:
    """As `held`, in a container that cannot write beside this file: it has `/tmp/reader` once it reads."""
    hold = Path(__file__).parent / "hold"

    def rows() -> Iterator[np.ndarray]:
        Path("/tmp/reader").touch()
        yield from features()[:4]
        while hold.exists():
            FOREVER.wait(LOOK_SECS)
        yield from features()[4:]

    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([2], tf.float32))


def numbers() -> tf.data.Dataset:
    """Numbers as features."""
    return tf.data.Dataset.range(3)


def differing() -> tf.data.Dataset:
    """Other features in each process."""
    number = float(os.getpid())
    return tf.data.Dataset.from_tensor_slices(np.full([NUM_EXAMPLES, 2], number, np.float32))


def empty() -> tf.data.Dataset:
    """No example."""
    return labelled().take(0)


def shuffled() -> tf.data.Dataset:
    """Another order each time."""
    return labelled().shuffle(NUM_EXAMPLES)


def shuffled_once() -> tf.data.Dataset:
    """Another order in each process."""
    return labelled().shuffle(NUM_EXAMPLES, reshuffle_each_iteration=False)


def shuffled_by_seed() -> tf.data.Dataset:
    """The same order in each process."""
    return labelled().shuffle(NUM_EXAMPLES, seed=3, reshuffle_each_iteration=False)


def generated() -> tf.data.Dataset:
    """Features from a generator, whose state is a variable."""
    generator = tf.random.Generator.from_seed(1)
    return labelled().map(lambda x, y: (x + generator.uniform([2]), y))


def endless() -> tf.data.Dataset:
    """The same examples again and again."""
    return labelled().repeat()


def narrow() -> tf.data.Dataset:
    """Features of another shape than the model's."""
    return tf.data.Dataset.from_tensor_slices(np.zeros([4, 5], np.float32))


def failing() -> tf.data.Dataset:
    """Raises when the second example is read."""
    return tf.data.Dataset.from_generator(_fail, output_signature=tf.TensorSpec([2], tf.float32))


def _fail() -> Iterator[np.ndarray]:
    yield np.zeros(2, np.float32)
    raise ValueError("no more rows")


def no_data() -> int:
    """No data set."""
    return 1
