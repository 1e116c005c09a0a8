"""The driver of the peer `ray`: actors train a step each on weights of their own, which the driver then averages.

Runs in the environment `.bench/ray`. Each actor computes the MLP with TensorFlow, as psfleet's workers do.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import timed
from benchmarks.workload import NUM_WORKERS, Workload

Vector = npt.NDArray[np.float32]
GATE_SECS = 600.0


class Replica:
    """An actor: the MLP, its optimizer and one shard of the data."""

    def __init__(self, workload: Workload, index: int) -> None:
        # The driver, which only averages, does not import TensorFlow.
        import tensorflow as tf

        from benchmarks.training_graph import accuracy, fed_loss, new_optimizer
        from psfleet.service.cpu import num_usable_cpus, threads_each

        v1 = tf.compat.v1
        v1.disable_v2_behavior()
        # The MLP's initial weights follow it, and must be the same; LeNet's do not, and its dropout should differ.
        v1.set_random_seed(workload.seed + index if workload.mnist else 1)
        loss, self._feed = fed_loss(workload, index)
        self._train = new_optimizer(workload).minimize(loss)
        variables = v1.trainable_variables()
        sizes = [variable.shape.num_elements() for variable in variables]
        self._weights = v1.placeholder(tf.float32, [sum(sizes)])
        parts = zip(variables, tf.split(self._weights, sizes), strict=True)
        self._assign = tf.group(*(each.assign(tf.reshape(part, each.shape)) for each, part in parts))
        with tf.control_dependencies([self._train]):
            self._flat = tf.concat([tf.reshape(each.read_value(), [-1]) for each in variables], axis=0)
        self._accuracy = accuracy(workload) if workload.mnist else None
        threads = threads_each(num_usable_cpus(), NUM_WORKERS)
        config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        self._session = v1.Session(config=config)
        self._session.run(v1.global_variables_initializer())

    def train(self, index: int, weights: Vector | None) -> Vector:
        """Trains the i-th step on weights, float32 [parameters]; None: on the initial ones. Returns the new weights."""
        if weights is not None:
            self._session.run(self._assign, {self._weights: weights})
        return self._session.run(self._flat, self._feed(index))

    def accuracy(self, weights: Vector) -> float:
        """LeNet's accuracy with these weights."""
        assert self._accuracy is not None, "the workload has no accuracy"
        self._session.run(self._assign, {self._weights: weights})
        return self._accuracy(self._session.run)


def main() -> None:
    """Prints a JSON line when Ray has started and one of `StepTimes` or `Reached`."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    workload = Workload.from_json(sys.argv[1])
    parent = ParentPipe()
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=NUM_WORKERS, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        # Ray's own handler does not run the finally block, which ends Ray's processes.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            train(workload, parent)
        finally:
            ray.shutdown()


def train(workload: Workload, parent: ParentPipe) -> None:
    """Trains on a started Ray."""
    import ray

    actor = ray.remote(num_cpus=1)(Replica)
    actors = [actor.remote(workload, index) for index in range(NUM_WORKERS)]
    average: Any = None

    def step(index: int) -> int:
        nonlocal average
        trained = ray.get([actor.train.remote(index, average) for actor in actors])
        average = ray.put(np.mean(trained, axis=0, dtype=np.float32))
        return index + 1

    parent.report(session="open")
    accuracy = (lambda: ray.get(actors[0].accuracy.remote(average))) if workload.mnist else None
    parent.report(**dataclasses.asdict(timed(step, accuracy, workload)))
    parent.wait_for_line("the end", GATE_SECS)


if __name__ == "__main__":
    main()
