"""Colocated ps in the job file: numbers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.addresses import container_addresses, num_own_ps
from psfleet.errors import BadJobError
from psfleet.job.job import Job, job_from_json, parse_job


def job(fleet: dict[str, Any], **fields: Any) -> Job:
    return parse_job({**sample_job().model_dump(), "fleet": {**fleet, "colocate": True}, **fields})


def test_each_worker_is_a_ps_and_none_can_be_missing_whatever_the_mode() -> None:
    for update in ({"mode": "sync", "quorum": 2}, {"mode": "async"}):
        made = job({"workers": 3}, update=update)
        assert (made.fleet.ps, num_own_ps(made)) == (3, 0)
        assert (made.least_workers, made.most_workers) == (3, 3)
        ps, workers = container_addresses(made)
        assert ps == workers
    assert job({}).fleet.ps == 1
    assert job_from_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("fleet", "fields", "expected"),
    [
        ({"workers": 3, "ps": 2}, {}, "fleet.ps is 2, expected fleet.workers = 3 with fleet.colocate"),
        ({"workers": 2, "spares": 1}, {}, "fleet.spares is 1, expected 0 with fleet.colocate: a step needs the ps of"),
        ({"workers": 2, "max_workers": 4}, {}, "fleet.max_workers is 4, expected null with fleet.colocate"),
        ({"workers": 2, "parts": 2}, {}, "fleet.parts is 2, expected 1 with fleet.colocate"),
        (
            {"workers": 1, "ps_addresses": ["a:2222"]},
            {},
            "fleet.ps_addresses is set, expected null with fleet.colocate: the ps are the workers",
        ),
        (
            {"workers": 2},
            {"update": {"replication": "in_graph"}},
            "update.replication is in_graph, expected between_graph with fleet.colocate",
        ),
        ({"workers": 0}, {}, "fleet.workers is 0: Input should be greater than or equal to 1"),
        ({"workers": "many"}, {}, "fleet.workers is 'many'"),
    ],
    ids=["ps", "spares", "scaled", "parts", "running ps", "in graph", "zero", "no number"],
)
def test_what_colocated_ps_cannot_do_is_refused(fleet: dict[str, Any], fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadJobError) as raised:
        job(fleet, **fields)
    assert expected in str(raised.value)
