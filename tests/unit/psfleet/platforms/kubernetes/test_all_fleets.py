"""Runs and standing fleets shown together to a user who has the rights for runs only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_api import Api

from psfleet.errors import UsageError
from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.launch.status import statuses
from psfleet.platforms.kubernetes.all_fleets import AllFleets
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.standing import KubernetesFleets

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"
FORBIDDEN = 'statefulsets.apps is forbidden: User "ann" cannot list resource "statefulsets" in API group "apps"'
NOT_SHOWN = f"standing fleets are not shown: Kubernetes refuses to list the parts of fleets: {FORBIDDEN}"


def refuse_stateful_sets(api: Api, status: int) -> None:
    answer = api.answer

    def refused(method: str, url: str, body: Any) -> tuple[int, Any]:
        if "/statefulsets" in url:
            return status, {"kind": "Status", "message": FORBIDDEN}
        return answer(method, url, body)

    api.answer = refused  # type: ignore[method-assign]


@pytest.fixture
def everything(api: Api) -> AllFleets:
    """What `psfleet status --on kubernetes` shows of a namespace with a run."""
    runs = Kubernetes()
    runs.apply(Request(load_job(JOB, ["fleet.ps=1", "fleet.workers=1"]), JOB))
    return AllFleets(runs, KubernetesFleets())


@pytest.mark.parametrize("name", [None, "linear"])
def test_without_the_right_to_list_stateful_sets_runs_are_shown_and_a_warning_says_what_is_not(
    api: Api, everything: AllFleets, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_stateful_sets(api, 403)
    with caplog.at_level(logging.WARNING):
        assert [(row.fleet, row.role) for row in statuses(everything, name)] == [("linear", "ps"), ("linear", "chief")]
        everything.members(name)
    assert caplog.messages == [f"{NOT_SHOWN}; k8s/rbac.yaml has the rights"], "once, however often it is looked at"


def test_a_name_that_no_run_has_is_still_refused_after_the_warning(
    api: Api, everything: AllFleets, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_stateful_sets(api, 403)
    with pytest.raises(UsageError, match="no fleet lab is in namespace here"), caplog.at_level(logging.WARNING):
        statuses(everything, "lab")
    assert len(caplog.messages) == 1


def test_any_other_refusal_of_the_api_is_an_error(api: Api, everything: AllFleets) -> None:
    refuse_stateful_sets(api, 401)
    with pytest.raises(UsageError, match="Kubernetes refuses to list the parts of fleets"):
        statuses(everything, None)
