"""One process of the contender `runtime`: a parameter server that consists of queues and one variable of TensorFlow.

The ps has all parameters in one variable. It dequeues the gradients, averages them, updates, and enqueues the
parameters for each worker, in a loop within one call of its session. A worker enqueues its gradient and dequeues
parameters in one call. So a gradient takes the three messages that any graph on two servers takes: the call, the
gradient, and the parameters. Nothing is counted, checked or recovered.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import tensorflow as tf

from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import time_steps
from benchmarks.training_graph import fed_loss, new_optimizer
from benchmarks.workload import NUM_WORKERS, Workload
from psfleet.service.cpu import num_cores, threads_each

GATE_SECS = 600.0
"""Longer than any deadline of the benchmark, which ends this process when it is over."""
PS = "/job:ps/task:0"


def main() -> None:
    """Runs one process; a worker prints a JSON line of step times in milliseconds."""
    parser = argparse.ArgumentParser(prog="benchmarks.bare_runtime")
    parser.add_argument("--cluster", type=json.loads, required=True, help="JSON of job name to host:port list")
    parser.add_argument("--index", type=int, required=True, help="of the worker; -1: the ps")
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    tf.compat.v1.disable_v2_behavior()
    role, index = ("ps", 0) if args.index < 0 else ("worker", args.index)
    config = tf.compat.v1.ConfigProto(
        device_filters=[PS, f"/job:{role}/task:{index}"],
        intra_op_parallelism_threads=threads_each(num_cores(), NUM_WORKERS),
    )
    server = tf.compat.v1.train.Server(tf.train.ClusterSpec(args.cluster), job_name=role, task_index=index)
    if role == "ps":
        update(server.target, config, args.workload)
    else:
        worker = Worker(server.target, config, index, args.workload)
        parent.report(**dataclasses.asdict(time_steps(worker.step, args.workload)))
    parent.wait_for_line("the end", GATE_SECS)


def queues(size: int) -> tuple[tf.queue.FIFOQueue, list[tf.queue.FIFOQueue]]:
    """The queue of gradients, and that of each worker's parameters, all on the ps: float32 `[size]`."""
    with tf.compat.v1.device(PS):
        names = ("gradients", *(f"parameters-{index}" for index in range(NUM_WORKERS)))
        made = [tf.queue.FIFOQueue(NUM_WORKERS, tf.float32, [[size]], shared_name=name) for name in names]
    return made[0], made[1:]


def update(target: str, config: tf.compat.v1.ConfigProto, workload: Workload) -> None:
    """Makes all updates of a workload, on the ps."""
    gradients, parameters = queues(workload.num_parameters)
    with tf.compat.v1.device(PS):
        start = tf.random.normal([workload.num_parameters], stddev=0.05, seed=1)
        variable = tf.compat.v1.get_variable("parameters", initializer=start, use_resource=True)
        optimizer = new_optimizer(workload)

        def send() -> tf.Operation:
            value = variable.read_value()
            return tf.group(*(each.enqueue(value) for each in parameters))

        def step(number: tf.Tensor) -> tf.Tensor:
            average = tf.add_n([gradients.dequeue() for _ in range(NUM_WORKERS)]) / NUM_WORKERS
            with (
                tf.control_dependencies([optimizer.apply_gradients([(average, variable)])]),
                tf.control_dependencies([send()]),
            ):
                return number + 1

        first = send()
        loop = tf.while_loop(lambda number: number < workload.total_steps, step, [0], parallel_iterations=1)
    with tf.compat.v1.Session(target, config=config) as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(first)
        session.run(loop)


class Worker:
    """A worker, whose variables are replaced in each step.

    Attributes:
        variables: Of this worker's server.
        session: On that server.
    """

    def __init__(self, target: str, config: tf.compat.v1.ConfigProto, index: int, workload: Workload) -> None:
        own = f"/job:worker/task:{index}"
        gradients, parameters = queues(workload.num_parameters)
        with tf.compat.v1.device(own):
            loss, self._feed = fed_loss(workload, index)
            self.variables = tf.compat.v1.trainable_variables()
            flat = tf.concat([tf.reshape(each, [-1]) for each in tf.gradients(loss, self.variables)], 0)
        with tf.compat.v1.device(PS):
            first = parameters[index].dequeue()
            with tf.control_dependencies([gradients.enqueue(flat)]):
                pulled = parameters[index].dequeue()
        with tf.compat.v1.device(own):
            start, self._step = (assigned(self.variables, each) for each in (first, pulled))
        self.session = tf.compat.v1.Session(target, config=config)
        self.session.run(start)

    def step(self, number: int) -> int:
        """Makes a step; returns the number of steps."""
        self.session.run(self._step, self._feed(number))
        return number + 1


def assigned(variables: list[tf.Variable], flat: tf.Tensor) -> tf.Operation:
    """Replaces variables by the parts of one tensor."""
    parts = tf.split(flat, [each.shape.num_elements() for each in variables])
    return tf.group(*(each.assign(tf.reshape(part, each.shape)) for each, part in zip(variables, parts, strict=True)))


if __name__ == "__main__":
    main()
