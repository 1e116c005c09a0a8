"""Runs on a standing fleet of a namespace: their objects, and that the fleet stays up for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.standing_api import StandingApi

import psfleet
from psfleet.errors import UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.platforms.kubernetes import platform
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.standing import KubernetesFleets
from psfleet.platforms.standing.placing import on_fleet
from psfleet.service import settings
from psfleet.tls import certificates

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"
LAB = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2}, "deadlines": {"start_secs": 0.1}})


def ids(api: StandingApi) -> set[str]:
    """The ids of the run that its pods have."""
    jobs = [each["spec"]["template"]["spec"] for (kind, _), each in api.objects.items() if kind == "jobs"]
    return {each["value"] for spec in jobs for each in spec["containers"][0]["env"] if each["name"] == settings.RUN}


def test_a_run_on_a_fleet_keeps_it_up_until_the_run_has_ended(standing_api: StandingApi) -> None:
    fleets = KubernetesFleets()
    fleets.up(LAB)
    before = set(standing_api.objects)
    runs = Kubernetes()
    job = on_fleet(load_job(JOB, ["fleet.workers=2"]), "lab", fleets)
    runs.apply(Request(job, JOB, fleet="lab"))
    assert {name for kind, name in standing_api.objects if kind == "jobs"} == {"linear-chief", "linear-worker"}
    runs.scale(job, 3)
    (first,) = ids(standing_api)
    assert first.startswith("linear-")
    assert {each.run for each in runs.members("linear") if each.role == "chief"} == {first}
    with pytest.raises(
        UsageError, match="fleet lab has runs: linear, expected none: `psfleet down linear --on kubernetes` ends the f"
    ):
        fleets.down("lab")
    assert before < set(standing_api.objects)
    assert runs.remove("linear", results=True)
    assert set(standing_api.objects) == before
    runs.apply(Request(job, JOB, fleet="lab"))
    assert ids(standing_api) != {first}, "its ps may still have the shards of the first one"
    done = {"type": "Complete", "status": "True", "reason": "", "message": ""}
    standing_api.objects["jobs", "linear-chief"]["status"] = {"conditions": [done]}
    fleets.down("lab")
    assert ("jobs", "linear-chief") in standing_api.objects, "its results are to be fetched"


def test_a_handle_starts_a_run_on_the_ps_of_a_fleet(standing_api: StandingApi, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no fleet 'lab' stands in namespace here"):
        psfleet.start(JOB, out=tmp_path / "out", fleet="lab", on="kubernetes")
    assert not (tmp_path / "out").exists()
    KubernetesFleets().up(LAB)
    psfleet.start(JOB, out=tmp_path / "out", fleet="lab", paused=True, on="kubernetes")
    assert {name for kind, name in standing_api.objects if kind == "jobs"} == {"linear-chief", "linear-worker"}
    (chief,) = standing_api.objects["jobs", "linear-chief"]["spec"]["template"]["spec"]["containers"]
    assert {"name": settings.HOLD, "value": settings.HELD_AT_START} in chief["env"]
    assert Kubernetes().job("linear").fleet.ps_addresses == KubernetesFleets().access("lab").ps
    assert ids(standing_api) != {"linear"}


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


def test_with_tls_a_run_has_no_secret_of_its_own_and_renews_those_of_the_fleet(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleets, runs = KubernetesFleets(), Kubernetes()
    fleets.up(LAB.model_copy(update={"tls": True}))
    before = {name: each["data"] for (kind, name), each in standing_api.objects.items() if kind == "secrets"}
    job = on_fleet(load_job(JOB, ["fleet.workers=1"]), "lab", fleets)
    assert job.tls
    runs.apply(Request(job, JOB, fleet="lab"))
    assert {name for kind, name in standing_api.objects if kind == "secrets"} == set(before)
    runs.scale(job, 2)
    for name in ("linear-chief", "linear-worker"):
        volumes = standing_api.objects["jobs", name]["spec"]["template"]["spec"]["volumes"]
        assert [each["secret"]["secretName"] for each in volumes if "secret" in each] == ["lab-worker-tls"], name
    certificates.renew(certificates_folder("lab"))
    attached = Kubernetes()
    assert attached.job("linear") == job
    attached.members("linear")
    renewed = standing_api.objects["secrets", "lab-worker-tls"]["data"]
    assert renewed["tls.crt"] != before["lab-worker-tls"]["tls.crt"]
    # Another machine of the user.
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    other = Kubernetes()
    assert other.job("linear") == job
    assert {each.role for each in other.members("linear")} == {"chief", "worker"}
    assert not certificates_folder("lab").exists()


def test_the_ports_of_a_run_stay_closed_until_its_last_pod_has_ended(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policies have an owner, with which Kubernetes would delete them."""
    runs, policies = Kubernetes(), []

    def pods_end(*_: Any) -> None:
        policies.extend(each for (kind, _), each in standing_api.objects.items() if kind == "networkpolicies")

    monkeypatch.setattr(platform, "wait_until_gone", pods_end)
    runs.apply(Request(load_job(JOB), JOB))
    assert standing_api.objects["networkpolicies", "linear"]["metadata"]["ownerReferences"]
    assert runs.remove("linear", results=False)
    assert [each["metadata"]["ownerReferences"] for each in policies] == [None, None]
    assert [name for kind, name in standing_api.objects if kind != "persistentvolumeclaims"] == []
