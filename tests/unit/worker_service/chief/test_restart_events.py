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
