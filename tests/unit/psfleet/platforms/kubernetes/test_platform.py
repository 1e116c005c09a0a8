"""A fleet in Kubernetes, as its platform shows it through the API."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from support.pod_samples import job, read

from psfleet.errors import BadJobError, LostPeerError, UsageError
from psfleet.manifests import container
from psfleet.platforms.kubernetes.api import translate_errors
from psfleet.platforms.kubernetes.platform import Kubernetes
from psfleet.platforms.kubernetes.volume_reader import PACK

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
INDEX = "batch.kubernetes.io/job-completion-index"


class ScriptedCluster:
    """The part of `Cluster` that a fleet of two workers needs.

    Attributes:
        refusals: Statuses with which the next listings are refused; 0: the listing is answered.
        happened: The events of every object.
    """

    namespace = "default"

    def __init__(self, pods: list[Any]) -> None:
        self._pods = pods
        self.refusals: list[int] = []
        self.happened: list[Any] = []

    def jobs(self, name: str | None) -> list[Any]:
        """See `Cluster`."""
        status = self.refusals.pop(0) if self.refusals else 0
        with translate_errors("list the parts of fleets"):
            if status:
                raise ApiException(status=status, reason="Unauthorized")
        return [job("chief"), job("worker", completions=1, parallelism=1)]

    def pods(self, name: str | None) -> list[Any]:
        """See `Cluster`."""
        return self._pods

    def events(self, uid: str) -> list[Any]:
        """See `Cluster`."""
        return self.happened

    def claims(self, name: str) -> list[Any]:
        """See `Cluster`. Fleet `small` has a volume."""
        content = {"metadata": {"name": "small", "uid": "claim"}, "status": {"phase": "Bound"}}
        return [read(content, "V1PersistentVolumeClaim")] if name == "small" else []

    def log(self, pod: str, container: str, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Cluster`. Pod `a` is the chief's."""
        assert container == ("chief" if pod == "a" else "worker")
        lines = [f"{pod} 1", f"{pod} 2"]
        return iter(lines if tail is None else lines[-tail:])


def pod(name: str, worker: int, second: int, phase: str = "Running") -> Any:
    """A pod of a worker, created at a second."""
    component, index = ("worker", worker - 1) if worker else ("chief", 0)
    labels = {INSTANCE: "small", COMPONENT: component, INDEX: str(index)}
    meta = {"name": name, "uid": name, "creationTimestamp": f"2026-01-01T00:00:{second:02}Z", "labels": labels}
    return read({"metadata": meta, "spec": {"containers": []}, "status": {"phase": phase}}, "V1Pod")


def platform(*pods: Any) -> tuple[Kubernetes, ScriptedCluster]:
    """A platform over a cluster with these pods."""
    found, cluster = Kubernetes(), ScriptedCluster(list(pods))
    found.__dict__["_cluster"] = cluster
    return found, cluster


def test_the_log_of_an_index_is_that_of_all_its_pods_older_ones_first() -> None:
    fleet, _ = platform(pod("b", 1, 9, "Pending"), pod("c", 1, 1, "Failed"), pod("a", 0, 5))
    chief, worker = fleet.members("small")
    assert (worker.name, worker.started) == ("b", 0.0)
    assert list(fleet.log(worker)) == ["c 1", "c 2", "b 1", "b 2"]
    assert list(fleet.log(worker, tail=1)) == ["b 2"], "of the newest pod"
    assert list(fleet.log(chief)) == list(fleet.log(chief, tail=2)) == ["a 1", "a 2"]


def test_a_member_without_a_pod_says_why_by_the_events_of_its_job() -> None:
    fleet, cluster = platform(pod("a", 0, 5))
    when = {"metadata": {"name": "e"}, "lastTimestamp": "2026-01-01T00:00:09Z", "involvedObject": {}}
    message = "Error creating: exceeded quota"
    cluster.happened = [read({**when, "type": "Warning", "reason": "FailedCreate", "message": message}, "CoreV1Event")]
    assert [member.problem for member in fleet.members("small")] == ["", "FailedCreate: exceeded quota"]


def test_workers_that_were_scaled_away_are_no_members_but_keep_their_logs() -> None:
    fleet, _ = platform(pod("a", 0, 1), pod("b", 1, 1), pod("c", 2, 1, "Failed"), pod("d", 2, 5, "Failed"))
    assert [member.name for member in fleet.members("small")] == ["a", "b"]
    (former,) = fleet.scaled_away("small")
    assert (former.role, former.index, former.name) == ("worker", 2, "d")
    assert list(fleet.log(former)) == ["c 1", "c 2", "d 1", "d 2"]


def test_a_fleet_has_results_while_its_claim_is_there() -> None:
    fleet, _ = platform()
    assert [fleet.has_results(name) for name in ("small", "other")] == [True, False]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_listing_that_is_refused_may_pass_once_one_was_answered(status: int) -> None:
    fleet, cluster = platform(pod("a", 0, 1))
    cluster.refusals = [status, 0, status]
    with pytest.raises(UsageError, match="Kubernetes refuses to list the parts of fleets"):
        fleet.members("small")
    assert len(fleet.members("small")) == 2
    with pytest.raises(LostPeerError, match="Kubernetes refuses to list the parts of fleets"):
        fleet.members("small")
    assert len(fleet.members("small")) == 2


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_fleet_whose_job_is_damaged_is_a_bad_job(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, cluster = platform()
    monkeypatch.setattr(cluster, "config_map", lambda name: {"job.json": text}, raising=False)
    with pytest.raises(BadJobError, match=r"ConfigMap small: job\.json: expected a resolved job as JSON"):
        fleet.job("small")


def test_results_that_grow_while_they_are_packed_are_whole_up_to_then(tmp_path: Path) -> None:
    """`psfleet results` of a fleet that trains: the chief appends to the history."""
    history = tmp_path / "history.jsonl"
    history.write_bytes(b"x" * (1 << 20))
    command = [part.replace(container.OUT, str(tmp_path)) for part in PACK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as packing:
        assert packing.stdout is not None
        # The pipe is full before the end of the file is read.
        first = packing.stdout.read(1)
        with history.open("ab") as file:
            file.write(b"more")
        rest, printed = packing.communicate(timeout=60)
    assert b"changed as we read it" in printed
    assert packing.returncode == 0
    with tarfile.open(fileobj=io.BytesIO(first + rest)) as archive:
        assert archive.getmember("./history.jsonl").size == 1 << 20


def test_results_that_cannot_be_packed_are_an_error(tmp_path: Path) -> None:
    command = [part.replace(container.OUT, str(tmp_path / "missing")) for part in PACK]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode > 0
