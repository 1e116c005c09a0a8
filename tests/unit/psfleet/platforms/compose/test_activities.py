"""Fleets with an activity on an engine: read from labels, and never mixed with a training run of their name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.activity_samples import ACTIVITY
from support.compose_samples import container

from psfleet.errors import BadJobError, UsageError
from psfleet.job.activity import Activity
from psfleet.manifests.compose.driven import ACTIVITY as LABEL
from psfleet.manifests.compose.driven import CONTENT
from psfleet.platforms.compose.activities import activity_of, require_kind
from psfleet.platforms.compose.containers import member_of

LABELS = {LABEL: "study", CONTENT: ACTIVITY.model_dump_json()}


def driven(role: str, service: str = "chief") -> Any:
    found = container(role)
    found.labels |= {**LABELS, "com.docker.compose.service": service}
    return found


def volume(labels: dict[str, str] | None) -> Any:
    return SimpleNamespace(attrs={"Labels": labels})


def test_a_container_says_what_its_fleet_does() -> None:
    assert activity_of(driven("chief")) == ACTIVITY
    assert member_of(driven("chief")).activity == "study"
    assert activity_of(container("chief")) is None
    assert member_of(container("chief")).activity == ""


def test_an_activity_of_another_version_is_refused_and_its_members_are_still_shown() -> None:
    found = driven("chief")
    found.labels[CONTENT] = '{"kind": "study", "unknown": 1}'
    with pytest.raises(BadJobError, match="expected an activity of a fleet as JSON"):
        activity_of(found)
    assert member_of(found).activity == "study"


def test_workers_of_a_driver_have_the_indices_of_their_services() -> None:
    member = member_of(driven("worker", "worker-11"))
    assert (member.index, member.host) == (11, "")


@pytest.mark.parametrize("code", [70, 78, 65])
def test_the_end_of_a_worker_of_a_driver_does_not_end_the_study(code: int) -> None:
    found = driven("worker", "worker-0")
    found.attrs["State"] |= {"Status": "exited", "ExitCode": code}
    assert not member_of(found).ends_run
    chief = driven("chief")
    chief.attrs["State"] |= {"Status": "exited", "ExitCode": code}
    assert member_of(chief).ends_run


@pytest.mark.parametrize(
    ("activity", "containers", "volumes"),
    [
        (None, [driven("chief")], []),
        (None, [], [volume({LABEL: "study"})]),
        (ACTIVITY, [container("chief")], []),
        (ACTIVITY, [], [volume({})]),
        (ACTIVITY, [], [volume(None)]),
    ],
)
def test_a_name_is_refused_under_which_there_is_something_else(
    activity: Activity | None, containers: list[Any], volumes: list[Any]
) -> None:
    text = "is on the Docker engine as a .*expected another name for a .*`psfleet down small --on compose --results`"
    with pytest.raises(UsageError, match=text):
        require_kind("small", activity, containers, volumes)


def test_remains_of_the_same_kind_are_accepted() -> None:
    require_kind("small", ACTIVITY, [driven("chief")], [volume({LABEL: "study"})])
    require_kind("small", None, [container("chief")], [volume({})])
    require_kind("small", ACTIVITY, [], [])
