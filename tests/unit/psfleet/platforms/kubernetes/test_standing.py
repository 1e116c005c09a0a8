"""Standing fleets in a namespace: up, shown and down, on an API server that runs no process."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_api import CREATED
from support.standing_api import StandingApi, ended

from psfleet.errors import BadJobError, DeadlineError, LostPeerError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.launch.status import statuses
from psfleet.launch.up import down
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.names import STANDING, labels
from psfleet.platforms.kubernetes import fleet_start
from psfleet.platforms.kubernetes.all_fleets import AllFleets
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.standing import KubernetesFleets
from psfleet.tls import certificates

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"
POLICIES = {("networkpolicies", "lab"), ("networkpolicies", "lab-client")}


def file(**sections: Any) -> FleetFile:
    short = {"deadlines": {"start_secs": 0.1}}
    return FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2, "workers": 1}, **short, **sections})


@pytest.fixture
def fleets(standing_api: StandingApi) -> KubernetesFleets:
    return KubernetesFleets()


def test_a_fleet_is_up_once_all_serve_and_is_gone_after_down(
    standing_api: StandingApi, fleets: KubernetesFleets
) -> None:
    access = fleets.up(file())
    assert access.ps == ["lab-ps-0.lab:2222", "lab-ps-1.lab:2222"]
    assert fleets.access("lab") == access
    members = fleets.members("lab")
    assert [(each.role, each.index, each.health) for each in members] == [
        ("ps", 0, "healthy"),
        ("ps", 1, "healthy"),
        ("worker", 0, "healthy"),
    ]
    fleets.down("lab")
    assert standing_api.objects == {}
    with pytest.raises(UsageError, match=r"no fleet 'lab' stands in namespace here, expected .*: there is none"):
        fleets.down("lab")


def test_the_ps_own_all_but_the_policies_which_outlast_the_pods(
    standing_api: StandingApi, fleets: KubernetesFleets
) -> None:
    fleets.up(file())
    owners = {
        key: [owner["kind"] for owner in each["metadata"].get("ownerReferences", ())]
        for key, each in standing_api.objects.items()
        if key[0] != "pods"
    }
    assert {key for key, found in owners.items() if not found} == POLICIES | {("statefulsets", "lab-ps")}
    assert all(found in ([], ["StatefulSet"]) for found in owners.values())
    standing_api.requests.clear()
    fleets.down("lab")
    deleted = [path.partition("/")[0] for _, path in standing_api.requests]
    assert deleted.index("networkpolicies") > max(
        n for n, kind in enumerate(deleted) if kind in ("pods", "statefulsets")
    )


def test_a_fleet_that_is_up_stays_as_it_is(
    standing_api: StandingApi, fleets: KubernetesFleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_start, "APPLY_SECS", 0.0)
    access = fleets.up(file())
    before = copy.deepcopy(standing_api.objects)
    standing_api.requests.clear()
    assert KubernetesFleets().up(file()) == access
    with pytest.raises(
        UsageError, match="other settings, expected the same, or `psfleet fleet down lab --on kubernetes` first"
    ):
        fleets.up(file(fleet={"ps": 3}))
    assert (standing_api.requests, standing_api.objects) == ([], before)
    del standing_api.objects["statefulsets", "lab-worker"]
    assert fleets.up(file()) == access
    assert set(standing_api.objects) == set(before), "what was missing is there again"


@pytest.mark.parametrize("owner", [labels("lab"), {}, labels("other", None, STANDING)], ids=["run", "none", "other"])
def test_an_object_of_another_owner_stays_as_it_is(
    standing_api: StandingApi, fleets: KubernetesFleets, owner: dict[str, str]
) -> None:
    meta = {"name": "lab", "uid": "u", "labels": owner}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"job.json": "{}"}}
    standing_api.objects["configmaps", "lab"] = theirs
    with pytest.raises(UsageError, match=r"ConfigMap lab in namespace here is not of fleet lab, .* the fleet's n"):
        fleets.up(file())
    with pytest.raises(UsageError, match="no fleet 'lab'"):
        fleets.down("lab")
    assert standing_api.objects == {("configmaps", "lab"): theirs}


def test_a_run_of_the_name_of_a_fleet_is_refused_and_its_commands_do_not_touch_the_fleet(
    standing_api: StandingApi, fleets: KubernetesFleets
) -> None:
    fleets.up(file())
    before = copy.deepcopy(standing_api.objects)
    runs, job = Kubernetes(), load_job(JOB, ["name=lab"])
    with pytest.raises(UsageError, match=r"is not of fleet lab, expected one with .*: change the job's name"):
        runs.apply(Request(job, JOB))
    with pytest.raises(UsageError, match="no fleet lab is in namespace here"):
        down(runs, "lab", results=True)
    assert runs.members(None) == []
    assert standing_api.objects == before


def test_status_shows_runs_and_standing_fleets_and_each_has_its_logs(
    standing_api: StandingApi, fleets: KubernetesFleets
) -> None:
    fleets.up(file())
    runs = Kubernetes()
    runs.apply(Request(load_job(JOB, ["fleet.ps=1"]), JOB))
    everything = AllFleets(runs, fleets)
    shown = [(row.fleet, row.role, row.state) for row in statuses(everything, None)]
    assert ("linear", "chief", "waiting") in shown
    assert [row for row in shown if row[0] == "lab"] == [("lab", "ps", "running")] * 2 + [("lab", "worker", "running")]
    standing_api.log = ["a line"]
    assert list(everything.log(everything.members("lab")[0])) == ["a line"]
    with pytest.raises(UsageError, match="no fleet other is in namespace here"):
        statuses(everything, "other")


def test_up_says_what_it_waits_for_and_leaves_nothing_behind(
    standing_api: StandingApi, fleets: KubernetesFleets, caplog: pytest.LogCaptureFixture
) -> None:
    standing_api.server = {}
    standing_api.happened = [event("create Pod lab-ps-0 in StatefulSet lab-ps failed: exceeded quota: small")]
    with pytest.raises(DeadlineError) as raised, caplog.at_level(logging.WARNING):
        fleets.up(file())
    reason = "FailedCreate: create Pod lab-ps-0 in StatefulSet lab-ps failed: exceeded quota: small"
    assert str(raised.value) == f"gave up after 0.1 s waiting for fleet lab to serve; last seen: pod lab-ps-0: {reason}"
    assert caplog.messages == [f"pod lab-ps-0 waits: {reason}"], "once"
    assert standing_api.objects == {}


def event(message: str) -> dict[str, Any]:
    """Why a StatefulSet makes no pod."""
    meta = {"name": "e", "creationTimestamp": CREATED}
    about = {"lastTimestamp": CREATED, "involvedObject": {}, "type": "Warning", "reason": "FailedCreate"}
    return {"metadata": meta, "message": message, **about}


def test_a_failure_that_would_recur_ends_up_at_once(standing_api: StandingApi, fleets: KubernetesFleets) -> None:
    standing_api.server = ended(78)
    with pytest.raises(LostPeerError, match=r"fleet lab: pod lab-\w+-0 failed: exit code 78$"):
        fleets.up(file(deadlines={"start_secs": 60}))
    assert standing_api.objects == {}


def test_an_api_that_does_not_answer_for_a_moment_does_not_end_up(
    standing_api: StandingApi, fleets: KubernetesFleets
) -> None:
    answer, refusals = standing_api.answer, [503]

    def refused(method: str, url: str, body: Any) -> tuple[int, Any]:
        # After the pods were made.
        if method == "GET" and "/pods?" in url and refusals:
            return refusals.pop(), {"kind": "Status", "message": "overloaded"}
        return answer(method, url, body)

    standing_api.answer = refused  # type: ignore[method-assign]
    assert fleets.up(file(deadlines={"start_secs": 30})).ps
    assert refusals == []


def test_a_member_says_how_often_it_was_restarted_and_why(standing_api: StandingApi, fleets: KubernetesFleets) -> None:
    fleets.up(file())
    (status,) = standing_api.objects["pods", "lab-worker-0"]["status"]["containerStatuses"]
    status |= {"restartCount": 2, "lastState": ended(137, "OOMKilled"), "ready": False, "started": False}
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    worker = fleets.members("lab")[2]
    assert (worker.restarts, worker.state, worker.health) == (2, "CrashLoopBackOff", "")
    assert worker.note == "OOMKilled: out of memory, the limit is 2Gi"


def test_with_tls_each_role_has_a_certificate_which_commands_renew(
    standing_api: StandingApi, fleets: KubernetesFleets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleets.up(file(tls=True))
    names = {f"lab-{role}-tls" for role in ("ps", "worker", "loader", "client")}
    secrets = {name: each["data"] for (kind, name), each in standing_api.objects.items() if kind == "secrets"}
    assert set(secrets) == names
    assert len({each["tls.crt"] for each in secrets.values()}) == 4
    assert not any("ca.key" in each for each in secrets.values())
    certificates.renew(certificates_folder("lab"))
    fleets.up(file(tls=True))
    renewed = {name: standing_api.objects["secrets", name]["data"] for name in names}
    assert all(renewed[name]["tls.crt"] != secrets[name]["tls.crt"] for name in names)
    # Another machine of the user.
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    fleets.up(file(tls=True))
    assert {name: standing_api.objects["secrets", name]["data"] for name in names} == renewed
    assert not certificates_folder("lab").exists()
    fleets.down("lab")
    assert standing_api.objects == {}


@pytest.mark.parametrize("key", ["fleet.json", "access.json"])
def test_a_fleet_of_another_version_can_only_be_ended(
    standing_api: StandingApi, fleets: KubernetesFleets, key: str
) -> None:
    fleets.up(file())
    standing_api.objects["configmaps", "lab"]["data"][key] = '{"colour": "red"}'
    for command in (lambda: fleets.up(file()), lambda: fleets.access("lab"), lambda: fleets.run("lab", JOB, [])):
        with pytest.raises(BadJobError, match=f"ConfigMap lab of fleet lab: {key}"):
            command()
    fleets.down("lab")
    assert standing_api.objects == {}
