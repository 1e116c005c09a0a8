"""One process of the peer `ps_strategy`: TensorFlow 2's ParameterServerStrategy, which is asynchronous.

A coordinator schedules each step on one of two workers; variables and the optimizer's slots are on one ps.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import time

import tensorflow as tf

from benchmarks.mlp.program import NUM_CLASSES, NUM_EXAMPLES, NUM_PIXELS, synthetic
from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import StepTimes
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.service.cpu import num_usable_cpus, threads_each

GATE_SECS = 600.0


def main() -> None:
    """Runs one task; the coordinator prints a JSON line when its model is built and one of step times."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers.ps_strategy")
    parser.add_argument("--cluster", type=json.loads, required=True, help="JSON of job name to host:port list")
    parser.add_argument("--role", choices=("ps", "worker", "chief"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    config = tf.compat.v1.ConfigProto()
    if args.role == "worker":
        threads = threads_each(num_usable_cpus(), NUM_WORKERS)
        config.intra_op_parallelism_threads = threads
        # The documentation of ParameterServerStrategy asks for at least this many.
        config.inter_op_parallelism_threads = max(threads, NUM_WORKERS + 1)
    spec = tf.train.ClusterSpec(args.cluster)
    if args.role != "chief":
        server = tf.distribute.Server(spec, job_name=args.role, task_index=args.index, protocol="grpc", config=config)
        server.join()
    coordinate(spec, args.workload, parent)


def coordinate(spec: tf.train.ClusterSpec, workload: Workload, parent: ParentPipe) -> None:
    """Builds the model, trains the warm-up steps, and then times all others together."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model(workload)
    dataset = coordinator.create_per_worker_dataset(lambda: batches(workload.batch_size))
    iterator = iter(dataset)

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(model.train, args=next(iterator))

    def train(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()

    train(workload.warmup_steps)
    parent.report(session="open")
    began = time.time()
    train(workload.steps)
    ended = time.time()
    # Two steps are trained at a time: none of them has a time of its own, and the mean stands for all.
    mean_ms = (ended - began) * 1000 / workload.steps
    parent.report(**dataclasses.asdict(StepTimes(mean_ms, mean_ms, mean_ms, workload.steps, began, ended)))
    parent.wait_for_line("the end", GATE_SECS)


def batches(batch_size: int) -> tf.data.Dataset:
    """Batches of the benchmark's examples, again and again, from memory."""
    images, labels = synthetic(0)
    number = NUM_EXAMPLES // batch_size
    kept = [each[: number * batch_size].reshape(number, batch_size, *each.shape[1:]) for each in (images, labels)]
    return tf.data.Dataset.from_tensor_slices(tuple(kept)).repeat().prefetch(2)


class Model:
    """The MLP with variables on the ps, and Adam or gradient descent by TensorFlow's fused operations."""

    def __init__(self, workload: Workload) -> None:
        widths = (NUM_PIXELS, workload.hidden, workload.hidden, NUM_CLASSES)
        initial = tf.keras.initializers.GlorotUniform(1)
        self._layers = [
            (tf.Variable(initial((inputs, outputs))), tf.Variable(tf.zeros([outputs])))
            for inputs, outputs in itertools.pairwise(widths)
        ]
        self._variables = [each for layer in self._layers for each in layer]
        self._slots = []
        if workload.optimizer == "adam":
            self._slots = [tuple(tf.Variable(tf.zeros_like(each)) for _ in range(2)) for each in self._variables]
            self._powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One update from images [batch, 784] float32 and labels [batch] int32; returns the loss."""
        with tf.GradientTape() as tape:
            activations = images
            for weights, biases in self._layers:
                logits = tf.matmul(activations, weights) + biases
                activations = tf.nn.relu(logits)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        for index, gradient in enumerate(tape.gradient(loss, self._variables)):
            self._update(index, gradient)
        if self._slots:
            for power, beta in zip(self._powers, (0.9, 0.999), strict=True):
                power.assign(power * beta)
        return loss

    def _update(self, index: int, gradient: tf.Tensor) -> None:
        variable = self._variables[index]
        with tf.device(variable.device):
            if not self._slots:
                variable.assign_sub(LEARNING_RATE * gradient)
                return
            first, second = self._slots[index]
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=first.handle, v=second.handle, beta1_power=self._powers[0],
                beta2_power=self._powers[1], lr=LEARNING_RATE, beta1=0.9, beta2=0.999, epsilon=1e-7, grad=gradient,
            )  # fmt: skip


if __name__ == "__main__":
    main()
