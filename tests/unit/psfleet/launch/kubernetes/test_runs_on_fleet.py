"""Runs on a standing fleet of a namespace: their objects, and that the fleet stays up for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.standing_api import StandingApi

from psfleet.errors import UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import load_job
from psfleet.launch.kubernetes.platform import Kubernetes
from psfleet.launch.kubernetes.standing import KubernetesFleets
from psfleet.launch.platform import Request
from psfleet.launch.standing.placing import on_fleet

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"
LAB = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2}, "deadlines": {"start_secs": 0.1}})


def test_a_run_on_a_fleet_keeps_it_up_until_the_run_has_ended(standing_api: StandingApi) -> None:
    fleets = KubernetesFleets()
    fleets.up(LAB)
    before = set(standing_api.objects)
    runs = Kubernetes()
    job = on_fleet(load_job(JOB, ["fleet.workers=2"]), "lab", fleets)
    runs.apply(Request(job, JOB, fleet="lab"))
    assert {name for kind, name in standing_api.objects if kind == "jobs"} == {"linear-chief", "linear-worker"}
    with pytest.raises(
        UsageError, match="fleet lab has runs: linear, expected none: `psfleet down linear --on kubernetes` ends the f"
    ):
        fleets.down("lab")
    assert before < set(standing_api.objects)
    assert runs.remove("linear", results=True)
    assert set(standing_api.objects) == before
    runs.apply(Request(job, JOB, fleet="lab"))
    done = {"type": "Complete", "status": "True", "reason": "", "message": ""}
    standing_api.objects["jobs", "linear-chief"]["status"] = {"conditions": [done]}
    fleets.down("lab")
    assert ("jobs", "linear-chief") in standing_api.objects, "its results are to be fetched"


def test_a_run_on_a_fleet_that_does_not_stand_there_is_refused(standing_api: StandingApi) -> None:
    fleets = KubernetesFleets()
    job = load_job(JOB)
    for refused in (
        lambda: on_fleet(job, "lab", fleets),
        lambda: Kubernetes().apply(Request(job, JOB, fleet="lab")),
    ):
        with pytest.raises(UsageError, match=r"lab.* stands in namespace here, expected one that `psfleet fleet up"):
            refused()
    assert standing_api.objects == {}
