"""Contender `compute`: one process trains alone in a local session: the lower bound of a worker's step time."""

from __future__ import annotations

import dataclasses
import sys

import tensorflow as tf

from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import StepTimes, time_steps
from benchmarks.training_graph import fed_loss, new_optimizer
from benchmarks.workload import Workload


def main() -> None:
    """Reads the workload from the command line and prints one JSON line of step times in milliseconds."""
    parent = ParentPipe()
    parent.report(**dataclasses.asdict(measure(Workload.from_json(sys.argv[1]))))


def measure(workload: Workload) -> StepTimes:
    """Trains to the workload's last step: gradients and update, no ps."""
    tf.compat.v1.disable_v2_behavior()
    loss, feed = fed_loss(workload, shard_index=0)
    train_op = new_optimizer(workload).minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())

        def run_step(index: int) -> int:
            session.run(train_op, feed_dict=feed(index))
            return index + 1

        return time_steps(run_step, workload)


if __name__ == "__main__":
    main()
