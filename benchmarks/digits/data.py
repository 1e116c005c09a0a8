"""MNIST as contenders read it: from memory, a part for each worker, in another order in each epoch.

It needs no TensorFlow, which PyTorch's environment does not have.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.workload import NUM_WORKERS, Workload

READER = Path(__file__).parents[2] / "examples" / "lenet" / "digits.py"
TEST_BATCH = 1000
Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]
"""Pixels [batch, 28, 28] and labels [batch]."""


@functools.cache
def reader() -> ModuleType:
    """The module of the example that reads MNIST, which is no package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.reader", READER)
    if spec is None or spec.loader is None:
        raise ImportError(f"{READER} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Its data classes look for it there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Shard:
    """One worker's training images.

    Args of the constructor:
        workload: Names the folder of MNIST.
        index: Of the worker.
    """

    def __init__(self, workload: Workload, index: int) -> None:
        training, _ = reader().read_mnist(workload.mnist)
        self._images: Any = training.shard(index, NUM_WORKERS)
        self._seed = [workload.seed, index]
        self._size = workload.batch_size
        self._epoch, self._order = -1, np.empty(0, np.intp)

    def batch(self, number: int) -> Batch:
        """The batch of a number; a rest of an epoch that fills no batch is left out."""
        epoch, place = divmod(number, len(self._images.labels) // self._size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([*self._seed, epoch]).permutation(len(self._images.labels))
        which = self._order[place * self._size : (place + 1) * self._size]
        return self._images.pixels[which], self._images.labels[which]


def evaluation_batches(folder: str) -> list[Batch]:
    """The test images, in batches."""
    _, test = reader().read_mnist(folder)
    starts = range(0, len(test.labels), TEST_BATCH)
    return [(test.pixels[start : start + TEST_BATCH], test.labels[start : start + TEST_BATCH]) for start in starts]


def accuracy(batches: Sequence[Batch], num_right: Callable[[Batch], int]) -> float:
    """The share of images that are right.

    Args:
        num_right: Returns the number of right ones in a batch.
    """
    return sum(map(num_right, batches)) / sum(len(labels) for _, labels in batches)
