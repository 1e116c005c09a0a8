"""The graph of all replicas: where they keep what they have pulled, for each chief, and how far they are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import tensorflow as tf
from support.programs import tiny_gan_program as tiny

from psfleet.job.job import parse_job
from worker_service.frontends import front_end, planned
from worker_service.in_graph.merged import ReplicaStep, _together, merged
from worker_service.session_errors import REPLICA
from worker_service.step import StepGraph

WORKERS = 2
JOB = parse_job(
    {
        "name": "sample",
        "program": "program:build",
        "fleet": {"ps": 1, "workers": WORKERS},
        "update": {"replication": "in_graph"},
        "optimizers": {name: {"name": "adam", "learning_rate": 0.1} for name in ("discriminator", "generator")},
        "train": {"steps": 20, "batch_size": 4, "alternate": tiny.ALTERNATE},
    }
)


def of_chief(joins: int) -> ReplicaStep:
    """The sync step of all replicas, in the graph of a chief."""

    front = front_end(tiny.build(), JOB, WORKERS, 0)
    layout = planned(front, JOB)

    def build(index: int) -> StepGraph:
        return StepGraph(front.of_worker(index), JOB, layout, index, "run", 1)

    (step,) = merged(build, WORKERS, True, joins)
    return step


def variables(step: ReplicaStep, index: int) -> tuple[set[tuple[bytes, bytes]], set[tuple[bytes, bytes]]]:
    """Container and name of each variable on the device of a worker: those of its step, and those destroyed."""
    own, destroyed = set(), set()
    for operation in step.graph.get_operations():
        if operation.type == "VarHandleOp" and operation.device.endswith(f"{step.worker_job}/task:{index}"):
            users = {user.type for user in operation.outputs[0].consumers()}
            found = destroyed if users == {"DestroyResourceOp"} else own
            found.add((operation.get_attr("container"), operation.get_attr("shared_name")))
    return own, destroyed


def test_no_loop_of_a_replica_has_the_name_of_one_of_another() -> None:
    """An executor knows the frame of a loop by its name alone: two of one name on one ps would be one loop."""
    frames: dict[str, set[bytes]] = {f"{REPLICA}{index}": set() for index in range(WORKERS)}
    for operation in of_chief(1).graph.get_operations():
        if operation.type in ("Enter", "RefEnter"):
            frames[operation.name.partition("/")[0]].add(operation.get_attr("frame_name"))
    first, second = frames.values()
    assert len(first) == len(second) > 0
    assert not first & second


def replica_at(*shards: tuple[int, int, int], number: int) -> ReplicaStep:
    """A replica that finds shards at these steps (global, final, started), with the newest gradient of a number."""
    unused: Any = None
    return ReplicaStep(
        **dict.fromkeys([each.name for each in fields(ReplicaStep)], unused)
        | {
            "steps": [],
            "accumulate": [],
            "pull": tf.constant(shards, tf.int64),
            "shard_steps": tf.constant([(step, number) for step, *_ in shards], tf.int64),
            "await_step": tf.constant([(step, final) for step, final, _ in shards], tf.int64),
            "load_frozen": tf.no_op(),
            "initializer": tf.no_op(),
        }
    )


def test_all_replicas_together_are_as_far_as_the_last_of_them() -> None:
    """One may pull before a shard's update and another one after it, or during it: then all are to pull again."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        together = _together(
            [replica_at((5, 100, 5), (6, 100, 6), number=5), replica_at((6, 100, 6), (6, 100, 7), number=4)]
        )
        pulled, newest = session.run([together.pull, together.shard_steps])
    assert pulled.tolist() == [[5, 100, 6], [6, 100, 7]]
    assert newest.tolist() == [[5, 4], [6, 4]]


def test_a_chief_shares_no_variable_on_a_worker_with_the_chief_before_and_destroys_those_it_has_left() -> None:
    """A chief that was frozen in a step may still have a part of it that stores what it pulls on a worker."""
    (first, _), (second, of_first), (_, of_second) = (variables(of_chief(joins), 1) for joins in (1, 2, 3))
    assert {name for _, name in first} == {name for _, name in second}
    assert any(name.endswith(b"parameters_0") for _, name in first)
    assert not first & second
    assert (of_first, of_second) == (first, second)
