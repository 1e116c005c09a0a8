"""The objects of a fleet in Kubernetes: how they are applied and removed, and how its results are copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pod_samples import job

from psfleet.errors import DeadlineError
from psfleet.job.job import load_job
from psfleet.launch.platform import Member, Request
from psfleet.platforms.kubernetes import platform as module
from psfleet.platforms.kubernetes import stopping
from psfleet.platforms.kubernetes.platform import Kubernetes

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"


class Recording:
    """The part of `Cluster` that objects need; what is deleted is gone at the second listing after that.

    Attributes:
        checked: Kind and name of objects that must not have another owner.
        applied: Kind and name of each object, in the order of the calls.
        owned: Those that got an owner.
        removed: Kinds.
    """

    namespace = "here"
    apps = SimpleNamespace(list_namespaced_deployment=lambda *where, **options: SimpleNamespace(items=[]))
    """It has no services."""

    def __init__(self, jobs: int = 0, claims: int = 0) -> None:
        self.checked: list[tuple[str, str]] = []
        self.applied: list[tuple[str, str]] = []
        self.owned: list[tuple[str, str]] = []
        self.removed: list[str] = []
        self.is_stuck = False
        self._left = {"Job": [job("chief")] * jobs, "Pod": [self._named("pod")] * jobs}
        self._left["PersistentVolumeClaim"] = [self._named("claim")] * claims
        self._ending: dict[str, int] = {}

    @staticmethod
    def _named(name: str) -> Any:
        return SimpleNamespace(
            metadata=SimpleNamespace(name=name, uid="u", labels={}),
            spec=SimpleNamespace(termination_grace_period_seconds=None),
        )

    def _listed(self, kind: str) -> list[Any]:
        if kind in self._ending and not self.is_stuck:
            self._ending[kind] -= 1
            if not self._ending[kind]:
                self._left[kind] = []
        return self._left[kind]

    def jobs(self, name: str) -> list[Any]:
        """See `Cluster`."""
        return self._listed("Job")

    def pods(self, name: str | None) -> list[Any]:
        """See `Cluster`; among those of all fleets, none mounts a volume."""
        return self._listed("Pod") if name is not None else []

    def claims(self, name: str) -> list[Any]:
        """See `Cluster`."""
        return self._listed("PersistentVolumeClaim")

    def require_own(self, name: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """See `FleetObjects`."""
        assert not self.removed, "before anything is changed"
        self.checked += [(each["kind"], each["metadata"]["name"]) for each in objects]

    def apply(self, name: str, objects: Sequence[Mapping[str, Any]]) -> list[Any]:
        """See `FleetObjects`."""
        self.applied += [(each["kind"], each["metadata"]["name"]) for each in objects]
        return [self._named(each["metadata"]["name"]) for each in objects]

    def set_owner(self, objects: Sequence[Mapping[str, Any]], owner: Any, kind: tuple[str, str]) -> None:
        """See `FleetObjects`."""
        assert (owner.metadata.name, kind) == ("linear-chief", ("batch/v1", "Job"))
        self.owned += [(each["kind"], each["metadata"]["name"]) for each in objects]

    def disown(self, name: str, kind: tuple[str, str]) -> dict[str, str]:
        """See `FleetObjects`."""
        assert not self.removed, "before their owner is deleted"
        return {}

    def remove_same(self, kind: tuple[str, str], uids: Mapping[str, str]) -> None:
        """See `FleetObjects`."""

    def remove_all(self, name: str, kinds: Sequence[tuple[str, str]]) -> bool:
        """See `FleetObjects`."""
        found = [kind for _, kind in kinds if self._left.get(kind)]
        self.removed += found
        self._ending.update(dict.fromkeys(found, 2))
        return bool(found)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until = stopping.wait_until
    monkeypatch.setattr(
        stopping, "wait_until", lambda *arguments, **options: wait_until(*arguments, **{**options, "poll_secs": 0.01})
    )


def platform(cluster: Recording) -> Kubernetes:
    """A platform over a cluster."""
    found = Kubernetes()
    found.__dict__.update(_cluster=cluster, _objects=cluster)
    return found


def test_the_jobs_of_workers_are_applied_when_all_that_their_pods_need_is_there_and_the_chiefs_owns_it() -> None:
    cluster = Recording()
    platform(cluster).apply(Request(load_job(JOB), JOB))
    assert cluster.applied[-2:] == [("Job", "linear-worker"), ("Job", "linear-chief")]
    assert ("Job", "linear-ps") in cluster.applied
    volume = ("PersistentVolumeClaim", "linear")
    assert volume in cluster.applied
    assert cluster.owned == [each for each in cluster.applied[:-1] if each != volume]
    assert set(cluster.checked) == set(cluster.applied)
    assert cluster.removed == []


@pytest.mark.parametrize(
    ("cluster", "results", "removed", "is_found"),
    [
        (Recording(), True, [], False),
        (Recording(jobs=1, claims=1), False, ["Job", "Pod"], True),
        (Recording(jobs=1, claims=1), True, ["Job", "Pod", "PersistentVolumeClaim"], True),
        (Recording(claims=1), True, ["PersistentVolumeClaim"], True),
    ],
    ids=["nothing", "without results", "all", "results"],
)
def test_a_fleet_is_removed_with_its_results_on_request(
    cluster: Recording, results: bool, removed: list[str], is_found: bool
) -> None:
    assert platform(cluster).remove("small", results) is is_found
    assert [kind for kind in cluster.removed if kind in ("Job", "Pod", "PersistentVolumeClaim")] == removed
    left = [kind for kind, found in cluster._left.items() if found]
    assert left == ([] if results else ["PersistentVolumeClaim"]), "it waits until what it deletes is gone"


def test_pods_that_do_not_go_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVAL_SECS", 0.05)
    cluster = Recording(jobs=1)
    cluster.is_stuck = True
    with pytest.raises(
        DeadlineError, match=r"waiting for the pods of fleet small to end; last seen: \['small-chief', 'pod'\]"
    ):
        platform(cluster).remove("small", results=False)


def test_a_chief_gets_sigint_and_its_pod_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str, tuple[str, ...]]] = []

    def execute(cluster: Recording, pod: str, container: str, command: tuple[str, ...]) -> Iterator[bytes]:
        said.append((pod, container, command))
        yield b""

    monkeypatch.setattr(stopping, "execute", execute)
    cluster = Recording(jobs=1)
    monkeypatch.setattr(stopping, "pods_of", lambda found: found)
    states = iter([False, True])
    monkeypatch.setattr(cluster, "pods", lambda name: [SimpleNamespace(name="chief-x", is_over=next(states))])
    platform(cluster).stop(Member("small", "chief", 0, "chief-x", "running"), 1.0)
    assert said == [("chief-x", "chief", ("sh", "-c", "kill -INT 1"))]
    assert next(states, None) is None, "until it has ended"
