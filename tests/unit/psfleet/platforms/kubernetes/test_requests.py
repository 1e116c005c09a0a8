"""Fleets with an activity in a namespace: what is applied, and never mixed with a training run of their name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.activity_samples import ACTIVITY, driven_job
from support.pod_samples import ended, job

from psfleet.errors import BadJobError, UsageError
from psfleet.job.activity import Activity
from psfleet.launch.platform import Request
from psfleet.manifests.kubernetes.names import ACTIVITY as LABEL
from psfleet.platforms.kubernetes.members import members_of
from psfleet.platforms.kubernetes.requests import activity_of, rendered, require_kind


def labelled(labels: dict[str, str] | None) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(labels=labels))


def test_a_request_with_an_activity_has_its_objects(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    jobs = [
        [each["metadata"]["name"] for each in rendered(request) if each["kind"] == "Job"]
        for request in (
            Request(driven_job(), tmp_path / "job.yaml", activity=ACTIVITY),
            Request(driven_job(), tmp_path / "job.yaml"),
        )
    ]
    assert jobs == [["small-worker", "small-chief"], ["small-ps", "small-worker", "small-chief"]]


@pytest.mark.parametrize(
    ("activity", "found"),
    [(None, {LABEL: "study"}), (ACTIVITY, {}), (ACTIVITY, None), (ACTIVITY, {LABEL: "prediction"})],
)
def test_a_name_is_refused_under_which_there_is_something_else(
    activity: Activity | None, found: dict[str, str] | None
) -> None:
    with pytest.raises(UsageError, match=r"fleet small is in namespace team as a .*, expected another name for a "):
        require_kind("small", activity, [labelled(found)], "team")


def test_remains_of_the_same_kind_are_accepted() -> None:
    require_kind("small", ACTIVITY, [labelled({LABEL: "study"})], "team")
    require_kind("small", None, [labelled({}), labelled(None)], "team")


def test_the_activity_is_read_from_the_config_map() -> None:
    def activity(**data: str) -> Activity | None:
        cluster: Any = SimpleNamespace(config_map=lambda name: data)
        return activity_of(cluster, "small")

    assert activity(**{"activity.json": ACTIVITY.model_dump_json(), "job.json": "{}"}) == ACTIVITY
    assert activity(**{"job.json": "{}"}) is None
    assert activity() is None
    with pytest.raises(BadJobError, match=r"ConfigMap small: activity.json: expected an activity"):
        activity(**{"activity.json": "{}"})


def test_workers_of_a_driver_have_their_completion_indices_and_do_not_end_the_study() -> None:
    jobs = [job(component) for component in ("chief", "worker")]
    for each in jobs:
        each.metadata.labels[LABEL] = "study"
    driver, first, second = members_of(jobs, [ended(70, index=1)])
    assert [(each.role, each.index, each.activity) for each in (driver, first, second)] == [
        ("chief", 0, "study"), ("worker", 0, "study"), ("worker", 1, "study")
    ]  # fmt: skip
    assert (second.exit_code, second.is_over, second.ends_run) == (70, True, False)
