"""One process of the contender `stock`: the synchronous training of TensorFlow 1 textbooks.

A `Server` per process with the full ClusterSpec, one variable per weight and bias placed round robin,
`SyncReplicasOptimizer` driven by the chief, `MonitoredTrainingSession`, data through feed_dict.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import Reached, StepTimes, timed
from benchmarks.training_graph import Accuracy, Feed, accuracy, fed_loss, new_optimizer
from benchmarks.workload import NUM_WORKERS, Workload

GATE_SECS = 600.0
"""Longer than any deadline of the benchmark, which ends this process when it is over."""


def main() -> None:
    """Runs one task; a worker prints a JSON line when its session is open and one of `StepTimes` or `Reached`."""
    parser = argparse.ArgumentParser(prog="benchmarks.stock")
    parser.add_argument("--cluster", type=json.loads, required=True, help="JSON of job name to host:port list")
    parser.add_argument("--role", choices=("ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    tf.compat.v1.disable_v2_behavior()
    server = tf.compat.v1.train.Server(
        tf.compat.v1.train.ClusterSpec(args.cluster), job_name=args.role, task_index=args.index
    )
    if args.role == "ps":
        server.join()
    else:
        run_worker(server, args.cluster, args.index, args.workload, parent)


def run_worker(
    server: tf.compat.v1.train.Server, cluster: dict[str, list[str]], index: int, workload: Workload, parent: ParentPipe
) -> None:
    """Trains as worker `index`; worker 0 is the chief, after which the others open their sessions.

    A worker that finds an uninitialized model retries only after 30 s. No worker closes its session itself: the chief
    would close the token queue that the others wait for. The benchmark ends all of them.
    """
    is_chief = index == 0
    train_op, feed, sync_hook, measure = build(cluster, index, workload)
    if not is_chief:
        parent.wait_for_line("the chief's session", GATE_SECS)
    with tf.compat.v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        hooks=[sync_hook],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        config=tf.compat.v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"]),
    ) as session:
        parent.report(session="open")
        parent.report(**dataclasses.asdict(train(session, train_op, feed, measure, workload)))
        parent.wait_for_line("the end", GATE_SECS)


def build(
    cluster: dict[str, list[str]], index: int, workload: Workload
) -> tuple[tf.Tensor, Callable[[int], Feed], tf.compat.v1.train.SessionRunHook, Accuracy | None]:
    """Builds a worker's graph; running the train op gives the step of the token that ended the worker's step.

    The last value is the accuracy of LeNet, and 0 on all workers but the chief, which alone evaluates; None: the
    workload has none.
    """
    device = tf.compat.v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")
    with tf.compat.v1.device(device):
        global_step = tf.compat.v1.train.get_or_create_global_step()
        loss, feed = fed_loss(workload, shard_index=index)
        optimizer = tf.compat.v1.train.SyncReplicasOptimizer(
            new_optimizer(workload), replicas_to_aggregate=NUM_WORKERS, total_num_replicas=NUM_WORKERS
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        measure: Accuracy | None = None
        if workload.mnist:
            measure = accuracy(workload) if index == 0 else lambda run: 0.0
    return train_op, feed, optimizer.make_session_run_hook(index == 0, num_tokens=0), measure


def train(
    session: Any, train_op: tf.Tensor, feed: Callable[[int], Feed], measure: Accuracy | None, workload: Workload
) -> StepTimes | Reached:
    """Trains until the model, not this worker, has made the last step, or has the accuracy that it `measure`s.

    A fast worker can dequeue both tokens of a step: if each worker counted its own steps, the other could wait forever.
    """

    def run_step(index: int) -> int:
        return int(session.run(train_op, feed_dict=feed(index)))

    return timed(run_step, None if measure is None else lambda: measure(session.run), workload)


if __name__ == "__main__":
    main()
