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
from collections.abc import Callable

import tensorflow as tf

from benchmarks.digits import data, lenet
from benchmarks.mlp.program import NUM_CLASSES, NUM_EXAMPLES, NUM_PIXELS, synthetic
from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import Reached, StepTimes, train_until
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.service.cpu import num_usable_cpus, threads_each

GATE_SECS = 600.0


def main() -> None:
    """Runs one task; the coordinator prints a JSON line when its model is built and one of `StepTimes` or `Reached`."""
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
    """Builds the model, trains the warm-up steps, and then times all others together, or those to an accuracy."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = (Lenet if workload.mnist else Model)(workload)
    dataset = coordinator.create_per_worker_dataset(lambda: model.batches())
    iterator = iter(dataset)

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(model.train, args=next(iterator))

    def train(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()

    parent.report(session="open")
    found = until_accuracy(train, model, workload) if isinstance(model, Lenet) else mean_of_steps(train, workload)
    parent.report(**dataclasses.asdict(found))
    parent.wait_for_line("the end", GATE_SECS)


def mean_of_steps(train: Callable[[int], None], workload: Workload) -> StepTimes:
    """Trains to the workload's last step.

    Args:
        train: Makes a number of steps. Two are trained at a time: none of them has a time of its own, and the mean
            stands for all.
    """
    train(workload.warmup_steps)
    began = time.time()
    train(workload.steps)
    ended = time.time()
    mean_ms = (ended - began) * 1000 / workload.steps
    return StepTimes(mean_ms, mean_ms, mean_ms, workload.steps, began, ended)


def until_accuracy(train: Callable[[int], None], model: Lenet, workload: Workload) -> Reached:
    """See `train_until`; `train` makes a number of steps."""

    def run(steps: int, until: int) -> int:
        train(until - steps)
        return until

    return train_until(run, model.accuracy, workload)


class Model:
    """The MLP with variables on the ps, and Adam or gradient descent by TensorFlow's fused operations."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._variables = [tf.Variable(value) for value in self._initial()]
        self._slots = []
        if workload.optimizer == "adam":
            self._slots = [tuple(tf.Variable(tf.zeros_like(each)) for _ in range(2)) for each in self._variables]
            self._powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def batches(self) -> tf.data.Dataset:
        """Batches of the benchmark's examples, again and again, from memory."""
        size = self._workload.batch_size
        images, labels = synthetic(0)
        number = NUM_EXAMPLES // size
        kept = [each[: number * size].reshape(number, size, *each.shape[1:]) for each in (images, labels)]
        return tf.data.Dataset.from_tensor_slices(tuple(kept)).repeat().prefetch(2)

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One update from a batch; returns the loss."""
        with tf.GradientTape() as tape:
            loss = self._loss(images, labels)
        for index, gradient in enumerate(tape.gradient(loss, self._variables)):
            self._update(index, gradient)
        if self._slots:
            for power, beta in zip(self._powers, (0.9, 0.999), strict=True):
                power.assign(power * beta)
        return loss

    def _initial(self) -> list[tf.Tensor]:
        """The variables' first values."""
        widths = (NUM_PIXELS, self._workload.hidden, self._workload.hidden, NUM_CLASSES)
        values = tf.keras.initializers.GlorotUniform(1)
        layers = [(values((inputs, outputs)), tf.zeros([outputs])) for inputs, outputs in itertools.pairwise(widths)]
        return [each for layer in layers for each in layer]

    def _loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Of images [batch, 784] float32 and labels [batch] int32."""
        activations = images
        for weights, biases in zip(self._variables[::2], self._variables[1::2], strict=True):
            logits = tf.matmul(activations, weights) + biases
            activations = tf.nn.relu(logits)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

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


class Lenet(Model):
    """The model of `examples/lenet`, on MNIST: each worker reads all of it, in an order of its own."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._evaluation = data.evaluation_batches(workload.mnist)

    def batches(self) -> tf.data.Dataset:
        """Batches of MNIST, from memory."""
        training, _ = data.reader().read_mnist(self._workload.mnist)
        number, size = len(training.labels), self._workload.batch_size
        order = tf.data.Dataset.range(number).shuffle(number).repeat().batch(size)
        pixels, labels = tf.constant(training.pixels), tf.constant(training.labels)
        return order.map(lambda which: (tf.gather(pixels, which), tf.gather(labels, which))).prefetch(2)

    def accuracy(self) -> float:
        """The share of the test images, on the coordinator."""
        weights = [tf.identity(variable) for variable in self._variables]
        return data.accuracy(
            self._evaluation, lambda batch: int(self._num_right(weights, *map(tf.constant, batch)))
        )  # fmt: skip

    @tf.function
    def _num_right(self, weights: list[tf.Tensor], pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return lenet.num_right(weights, pixels, labels)

    def _initial(self) -> list[tf.Tensor]:
        return [tf.constant(value) for value in lenet.initial(self._workload.seed)]

    def _loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Of pixels [batch, 28, 28] uint8 and labels [batch] int32."""
        return lenet.mean_loss(self._variables, images, labels)


if __name__ == "__main__":
    main()
