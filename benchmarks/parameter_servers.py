"""One process of the contender `ParameterServerStrategy` of TensorFlow 2: the model of `benchmarks.lookups`, async."""

from __future__ import annotations

import argparse
import json
import os
from time import perf_counter

import tensorflow as tf

from benchmarks.lookups.program import WIDTH, data
from benchmarks.parent_pipe import ParentPipe

RATE = 0.01
GATE_SECS = 3600.0
"""Longer than a benchmark, which ends this process when it is over."""


def main() -> None:
    """Runs one task; the coordinator trains for each line from its parent, and prints the milliseconds of a step."""
    parser = argparse.ArgumentParser(prog="benchmarks.parameter_servers")
    parser.add_argument("--cluster", type=json.loads, required=True, help="JSON of job name to host:port list")
    parser.add_argument("--role", choices=("ps", "worker", "chief"), required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of each worker, for each line")
    args = parser.parse_args()
    parent = ParentPipe()
    spec = tf.train.ClusterSpec(args.cluster)
    if args.role != "chief":
        tf.distribute.Server(spec, job_name=args.role, task_index=args.index).join()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="chief", task_id=0)
    train = Training(resolver, args.rows, args.batch_size)
    workers = len(args.cluster["worker"])
    parent.report(ready=os.getpid())
    while True:
        parent.wait_for_line("the next round", GATE_SECS)
        began = perf_counter()
        train.run(args.steps * workers)
        parent.report(step_ms=1000 * (perf_counter() - began) / args.steps)


class Training:
    """The model, and its steps on the workers."""

    def __init__(self, resolver: tf.distribute.cluster_resolver.ClusterResolver, rows: int, batch_size: int) -> None:
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self._table = tf.Variable(lambda: tf.random.uniform([rows, WIDTH], -0.05, 0.05))
            self._out = tf.Variable(tf.ones([WIDTH, 1]))

        def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            examples = tf.data.Dataset.from_tensor_slices(data(context.input_pipeline_id, rows, batch_size))
            return examples.repeat().batch(batch_size).prefetch(2)

        datasets = self._coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(batches)
        )
        self._batches = iter(datasets)
        self._step = tf.function(self._build)

    def run(self, steps: int) -> None:
        """Makes steps on all workers."""
        for _ in range(steps):
            self._coordinator.schedule(self._step, args=(self._batches,))
        self._coordinator.join()

    def _build(self, batches: object) -> tf.Tensor:
        ids, y = next(batches)  # type: ignore[call-overload]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reduce_mean(tf.gather(self._table, ids), 1) @ self._out - y))
        rows, out = tape.gradient(loss, [self._table, self._out])
        self._table.scatter_sub(tf.IndexedSlices(RATE * rows.values, rows.indices))
        self._out.assign_sub(RATE * out)
        return loss


if __name__ == "__main__":
    main()
