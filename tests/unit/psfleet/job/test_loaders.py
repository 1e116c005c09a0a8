"""Jobs with loaders, and where they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.launch.task import Wanted, task_of


def job(**sections: Any) -> Job:
    fields = sample_job().model_dump(mode="json")
    return parse_job({**fields, "input": {"from": "loaders"}, **sections})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"input": {"loaders": 2}}, "input: loaders is 2, expected 1 without from: loaders"),
        ({"input": {"from": "loaders", "loaders": 9}}, "input.loaders is 9, expected at most"),
        ({"update": {"replication": "in_graph"}}, "worker or preload: update.replication is in_graph"),
    ],
)
def test_a_fleet_that_cannot_have_loaders_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        job(**sections)


def test_loaders_are_refused_on_hosts_of_their_own() -> None:
    with pytest.raises(BadJobError, match="expected worker or preload: `psfleet task` starts no loaders"):
        task_of(job(), Wanted("worker", 0, "one:2222"), None)
