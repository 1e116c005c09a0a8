"""The pod of a client is renewed while its command lives; what a command that was killed has left is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_api import CREATED
from support.standing_api import READY, StandingApi, ended

from psfleet.errors import LostPeerError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.kubernetes.names import RENEWED
from psfleet.platforms.kubernetes import client_attendance
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.standing import KubernetesFleets
from psfleet.polling import wait_until

POD = ("pods", "lab-client-0")


@pytest.fixture
def lab(standing_api: StandingApi) -> KubernetesFleets:
    """A fleet that is up."""
    fleets = KubernetesFleets()
    fleets.up(FleetFile.model_validate({"name": "lab", "deadlines": {"start_secs": 0.1}}))
    return fleets


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "client").mkdir()
    path = tmp_path / "client" / "client.py"
    path.write_text("print(1)\n")
    return path


def test_a_client_is_renewed_from_its_creation_to_its_end(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = READY
    monkeypatch.setattr(client_attendance, "RENEW_SECS", 0.01)

    def num_renewals() -> int:
        return standing_api.requests.count(("PATCH", "pods/lab-client-0"))

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        wait_until(num_renewals, 20, "renewals", done=lambda num: num > 3, poll_secs=0.01)
        said = datetime.fromisoformat(standing_api.objects[POD]["metadata"]["annotations"][RENEWED])
        assert abs(said - datetime.now(UTC)) < timedelta(minutes=1)
        standing_api.objects[POD]["status"]["containerStatuses"][0]["state"] = ended(0)
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    assert lab.run("lab", script, []) == 0
    assert POD not in standing_api.objects, "no renewal has made it again"


def test_a_client_that_may_not_be_renewed_does_not_run(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path
) -> None:
    answer, before = standing_api.answer, set(standing_api.objects)

    def refused(method: str, url: str, body: Any) -> tuple[int, Any]:
        if (method, "/pods/" in url) == ("PATCH", True):
            return 403, {"kind": "Status", "message": "pods is forbidden"}
        return answer(method, url, body)

    standing_api.answer = refused  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="Kubernetes refuses to patch pod lab-client-0: pods is forbidden"):
        lab.run("lab", script, [])
    assert set(standing_api.objects) == before


@pytest.mark.parametrize(
    ("state", "age", "stays"),
    [
        (ended(143), timedelta(hours=2), False),
        (ended(0), timedelta(minutes=50), True),
        (READY, timedelta(hours=2), True),
        (ended(143), None, False),
    ],
    ids=["left", "just ended", "runs", "never renewed"],
)
def test_a_pod_whose_command_was_killed_is_deleted_by_a_later_one(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, state: Any, age: timedelta | None, stays: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Cluster, "delete_pod", lambda *_: None)
        assert lab.run("lab", script, []) == 0
    left = standing_api.objects.pop(POD)
    left["metadata"] |= {"name": "lab-client-7", "annotations": {}}
    left["status"]["containerStatuses"][0]["state"] = state
    left["status"]["phase"] = "Running" if state is READY else "Failed"
    if age is not None:
        left["metadata"]["annotations"] = {RENEWED: (datetime.now(UTC) - age).isoformat()}
    standing_api.objects["pods", "lab-client-7"] = left
    assert lab.run("lab", script, []) == 0
    assert (("pods", "lab-client-7") in standing_api.objects) is stays


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_client_that_is_asked_to_end_with_its_pod_is_lost_whatever_its_exit_code(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    standing_api.client = READY

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        pod = standing_api.objects[POD]
        pod["status"]["containerStatuses"][0]["state"] = ended(143)
        if how == "deleted":
            pod["metadata"]["deletionTimestamp"] = CREATED
        else:
            pod["status"] |= {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(LostPeerError, match=r"lab-client-0 was deleted or evicted while the client ran: .*SIGTERM"):
        lab.run("lab", script, [])


def test_a_refusal_after_a_first_answer_does_not_end_a_client(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired token, for example, which is renewed when the API asks for it."""
    standing_api.client = READY
    answer, refusals = standing_api.answer, [401, 403]

    def refused(method: str, url: str, body: Any) -> tuple[int, Any]:
        if method == "GET" and url.endswith("/pods/lab-client-0") and is_ended and refusals:
            return refusals.pop(), {"kind": "Status", "message": "expired"}
        return answer(method, url, body)

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        is_ended.append(True)
        standing_api.objects[POD]["status"]["containerStatuses"][0]["state"] = ended(5)
        return iter(())

    is_ended: list[bool] = []
    standing_api.answer = refused  # type: ignore[method-assign]
    monkeypatch.setattr(Cluster, "log", log)
    assert lab.run("lab", script, []) == 5
    assert refusals == []
