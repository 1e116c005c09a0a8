"""Replicas of several parts in the job file: numbers, and what is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job


def job(fleet: dict[str, Any], **fields: Any) -> Job:
    return parse_job({**sample_job().model_dump(), "fleet": fleet, **fields})


def test_workers_are_processes_and_the_quorum_counts_replicas() -> None:
    made = job({"workers": 6, "parts": 3})
    assert (made.fleet.processes, made.fleet.replicas, made.quorum) == (6, 2, 2)
    assert (made.least_workers, made.most_workers) == (6, 6)
    assert [list(made.fleet.tasks_of(replica)) for replica in range(2)] == [[0, 2, 4], [1, 3, 5]]
    assert job({"workers": 6, "parts": 3}, update={"mode": "async"}).least_workers == 5
    assert job({"workers": 6}, update={"mode": "async", "replication": "in_graph"}).least_workers == 6
    assert job({"workers": 4, "parts": 2}, tls=True).tls


def test_the_least_workers_leave_a_quorum_of_whole_replicas_whichever_they_are() -> None:
    for fields in ({"mode": "async"}, {"quorum": 2}, {"quorum": 3}):
        made = job({"workers": 6, "parts": 2}, update=fields)
        needed = fields.get("quorum", 1)
        replicas = [set(made.fleet.tasks_of(replica)) for replica in range(3)]
        for left in combinations(range(6), made.least_workers):
            assert sum(each <= set(left) for each in replicas) >= needed, left


@pytest.mark.parametrize(
    ("fleet", "fields", "expected"),
    [
        ({"workers": 3, "parts": 2}, {}, "fleet.workers is 3, expected a multiple of fleet.parts = 2"),
        ({"workers": 1, "parts": 2}, {}, "fleet.workers is 1, expected a multiple of fleet.parts = 2"),
        (
            {"workers": 2, "parts": 2, "spares": 1},
            {},
            "fleet.spares is 1, expected 0 with fleet.parts = 2: a spare is one worker, and a replica 2",
        ),
        (
            {"workers": 2, "parts": 2, "max_workers": 4},
            {},
            "fleet.max_workers is 4, expected null with fleet.parts = 2: the fleet is not scaled",
        ),
        (
            {"workers": 2, "parts": 2},
            {"device": {"replicas": "auto"}},
            "device.replicas is auto, expected 1 with fleet.parts = 2: a program assigns its operations to the parts",
        ),
        (
            {"workers": 2, "parts": 2},
            {"tables": {"user": {"rows": 10}}},
            "fleet.parts is 2, expected 1 with tables: rows are read on the first part alone",
        ),
        (
            {"workers": 4, "parts": 2},
            {"update": {"quorum": 3}},
            "update.quorum is 3, expected at most fleet.workers / fleet.parts = 2, the number of replicas",
        ),
        ({"workers": 4, "parts": 0}, {}, "fleet.parts is 0: Input should be greater than or equal to 1"),
    ],
    ids=["not divisible", "too few", "spares", "scaled", "towers", "tables", "quorum", "zero"],
)
def test_what_parts_cannot_do_is_refused(fleet: dict[str, Any], fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadJobError) as raised:
        job(fleet, **fields)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
