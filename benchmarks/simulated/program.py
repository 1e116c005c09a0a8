"""A linear model whose gradient waits for a given time instead of computing, and a count of the chief's bytes."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

import psfleet
from psfleet.callbacks import RunInfo

STEPS_FILE = "measured.jsonl"
"""In the run folder: a line for each step of the chief, with its number, seconds, and bytes so far."""
NUM_EXAMPLES = 8000
TCP_INFO_BYTES = 136
BYTES_ACKED = 120
"""Offset of bytes_acked and bytes_received in struct tcp_info (include/uapi/linux/tcp.h)."""


def build(
    shapes: Sequence[Sequence[int]],
    wait_ms: int = 0,
    slow_share: float = 0.0,
    slow_factor: int = 1,
    is_lent: bool = False,
    num_waits: int = 1,
    seed: int = 0,
) -> psfleet.GraphProgram:
    """The program.

    Args:
        shapes: Of the parameters.
        wait_ms: How long a worker has nothing to do in each of its steps.
        slow_share: Share of a worker's steps that wait longer; each worker has others.
        slow_factor: How many times as long these wait.
        is_lent: Whether workers run steps that another process has built, as with in-graph replication.
        num_waits: Number of operations that wait one after the other, each for its part of the time.
        seed: Of the examples, which say what steps wait longer.
    """

    def loss(batch: tf.Tensor) -> tf.Tensor:
        return waiting_loss(batch, shapes, wait_ms, slow_share, slow_factor, is_lent, num_waits)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        del num_shards
        return tf.data.Dataset.from_tensor_slices(synthetic(shard_index, seed))

    return psfleet.GraphProgram(loss=loss, train=train)


def synthetic(shard_index: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """One worker's examples, normally distributed: float32 [NUM_EXAMPLES]."""
    return np.random.default_rng([shard_index, seed]).normal(size=NUM_EXAMPLES).astype(np.float32)


def waiting_loss(
    batch: tf.Tensor,
    shapes: Sequence[Sequence[int]],
    wait_ms: int,
    slow_share: float = 0.0,
    slow_factor: int = 1,
    is_lent: bool = False,
    num_waits: int = 1,
) -> tf.Tensor:
    """The mean square of a batch, float32 [batch], plus the mean of each variable: a float32 scalar.

    The gradients are constants, and take no time. The other arguments are those of `build`.
    """
    ones = tf.compat.v1.ones_initializer()
    weights = [
        tf.compat.v1.get_variable(f"weights_{index}", list(shape), initializer=ones)
        for index, shape in enumerate(shapes)
    ]
    # The wait stands for a gradient, which begins when the parameters are there.
    values = [tf.identity(each) for each in weights]
    # What is fed in place of a placeholder cannot be waited for itself.
    with tf.control_dependencies([tf.identity(batch), *values]):
        waited = 1000 * tf.constant(wait_ms, tf.int64)
        if slow_share:
            # The first example of a batch is above this quantile in that share of batches.
            is_slow = batch[0] > NormalDist().inv_cdf(1 - slow_share)
            waited = tf.where(is_slow, slow_factor * waited, waited)
        slept = waited
        for _ in range(num_waits if wait_ms else 0):
            with tf.control_dependencies([slept]):
                slept = (_slept_anywhere if is_lent else _slept)(waited // num_waits)
    with tf.control_dependencies([slept]):
        means = tf.add_n([_mean_of_equals(each, slept) for each in values])
        return tf.reduce_mean(tf.square(batch)) + means


def _mean_of_equals(value: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """The mean of a tensor whose elements are equal, as those of a variable stay here; its gradient is a constant.

    Args:
        after: The gradient is there once this is known.
    """
    size = value.shape.num_elements()

    def mean(elements: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # The loss adds the means, so that this is 1.
            del upstream
            constant = tf.constant(1 / size, value.dtype, value.shape)
            with tf.control_dependencies([after]):
                return tf.identity(constant)

        return tf.reshape(elements, [size])[0], gradient

    result: tf.Tensor = tf.custom_gradient(mean)(value)
    return result


def _slept(microseconds: tf.Tensor) -> tf.Tensor:
    """Is known after so many microseconds, int64 scalar, in the process that has built the graph."""

    def sleep(number: np.int64) -> np.int64:
        time.sleep(int(number) / 1e6)
        return number

    return tf.numpy_function(sleep, [microseconds], tf.int64)


def _slept_anywhere(microseconds: tf.Tensor) -> tf.Tensor:
    """As `_slept`, in any process, which knows no functions of others; takes 6 ms of CPU time besides."""
    dataset = testing.sleep(microseconds)(tf.data.Dataset.range(0))
    return dataset.reduce(np.int64(0), lambda state, _: state)


class Measurements(psfleet.Callback):
    """Writes what each step of the chief took, and how many bytes its connections have carried."""

    every_steps = 1

    def on_start(self, run: RunInfo) -> None:
        """See Callback."""
        self._file = run.folder / STEPS_FILE

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """See Callback."""
        line = {"step": step, "secs": metrics["step_secs"], "bytes": process_bytes()}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def process_bytes() -> int:
    """Bytes that this process's open TCP connections with other processes have carried, both ways."""
    with connections() as found:
        own = {connection.getsockname()[:2] for connection in found}
        others = [connection for connection in found if connection.getpeername()[:2] not in own]
        infos = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES) for each in others]
    return sum(sum(struct.unpack_from("=QQ", info, BYTES_ACKED)) for info in infos)


@contextmanager
def connections() -> Iterator[list[socket.socket]]:
    """The TCP connections of this process."""
    found: list[socket.socket] = []
    try:
        for name in os.listdir("/proc/self/fd"):
            # Another thread may have closed it by now.
            with suppress(OSError):
                if not stat.S_ISSOCK(os.stat(Path("/proc/self/fd", name)).st_mode):
                    continue
                copy = socket.socket(fileno=os.dup(int(name)))
                is_tcp = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
                if is_tcp and is_connected(copy):
                    found.append(copy)
                else:
                    copy.close()
        yield found
    finally:
        for copy in found:
            copy.close()


def is_connected(own: socket.socket) -> bool:
    """Whether a socket has a peer: one that listens has none."""
    try:
        own.getpeername()
    except OSError:
        return False
    return True
