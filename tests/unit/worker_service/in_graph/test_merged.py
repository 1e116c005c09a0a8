"""The graph of all replicas: where they keep what they have pulled, for each chief."""

from __future__ import annotations

from support.programs import tiny_gan_program as tiny

from psfleet.job.job import parse_job
from worker_service.frontends import front_end, planned
from worker_service.in_graph.merged import ReplicaStep, merged
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


def test_a_chief_shares_no_variable_on_a_worker_with_the_chief_before_and_destroys_those_it_has_left() -> None:
    """A chief that was frozen in a step may still have a part of it that stores what it pulls on a worker."""
    (first, _), (second, of_first), (_, of_second) = (variables(of_chief(joins), 1) for joins in (1, 2, 3))
    assert {name for _, name in first} == {name for _, name in second}
    assert any(name.endswith(b"parameters") for _, name in first)
    assert not first & second
    assert (of_first, of_second) == (first, second)
