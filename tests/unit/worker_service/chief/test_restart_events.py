"""Which joins the chief records as restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.job.job import parse_job
from worker_service.chief.events import Events

JOB = parse_job(
    {
        "name": "restarts",
        "program": "program:build",
        "fleet": {"workers": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 5, "batch_size": 4},
    }
)


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """Of a chief that has seen the second process of worker 1."""
    events = Events(tmp_path, JOB)
    for process in ("a", "b"):
        events.record_restarts([ps_0(process, joins="ab".index(process) + 1)])
    assert events.restarts["worker", 1] == 1
    return events


def ps_0(process: str, joins: int) -> pb.ShardState:
    """What ps 0 knows of worker 1."""
    return pb.ShardState(workers=[pb.WorkerState(index=1, process=process, joins=joins)])


@pytest.mark.parametrize(
    ("process", "joins", "restarts"), [("b", 2, 1), ("b", 1, 1), ("c", 3, 2), ("c", 1, 2)],
    ids=["the same", "ps 0 was restarted", "another process", "both were restarted"],
)  # fmt: skip
def test_a_restart_is_recorded_once_also_if_ps_0_has_lost_count(
    events: Events, process: str, joins: int, restarts: int
) -> None:
    for _ in range(2):
        events.record_restarts([ps_0(process, joins)])
    assert events.restarts["worker", 1] == restarts


TRAINS, LACKS_SHARD = pb.ShardState(phase=pb.RUNNING), pb.ShardState(phase=pb.EMPTY)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (["join", "loss", "trains"], [("killed", 11)]),
        (["loss", "join", "trains"], [("killed", 11)]),
        (["join", "trains"], [("again", 0)]),
        (["join", "join", "loss", "trains"], [("again", 0), ("killed", 11)]),
        (["join", "loss", "join", "trains"], [("killed", 11), ("again", 0)]),
        (["join", "loss", "trains", "loss", "join", "trains"], [("killed", 11), ("killed", 11)]),
        (["join", "gone", "loss", "trains"], [("killed", 11)]),
    ],
    ids=[
        "it joins first",
        "its ps answers first",
        "before the first step",
        "twice",
        "during the restore",
        "later",
        "-",
    ],
)
def test_the_end_of_a_worker_that_is_a_ps_is_one_restart(
    seen: list[str], expected: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Recovery records the loss of its shard, and ps 0 that another process has joined."""
    job = parse_job({**JOB.model_dump(), "fleet": {"workers": 2, "colocate": True}})
    events, joins = Events(tmp_path, job), 1
    other: pb.ShardState | None = TRAINS

    def beat() -> None:
        worker = pb.WorkerState(index=1, process=str(joins), joins=joins, cause="again")
        events.record_restarts([pb.ShardState(phase=pb.RUNNING, workers=[worker]), other])

    beat()
    for what in seen:
        if what == "loss":
            events.record_loss(1, "killed", 11, generation=2)
        joins += what == "join"
        other = {"trains": TRAINS, "gone": None}.get(what, LACKS_SHARD)
        beat()
    assert [(event.cause, event.steps_lost) for event in events.all()] == expected
    assert {(event.role, event.index) for event in events.all()} == {("worker", 1)}
    assert events.restarts == {("worker", 1): len(expected)}
    assert Events(tmp_path, job).restarts == events.restarts, "the next chief reads them from the file"
