"""Objects in a namespace that have the names of a fleet's objects, and other owners."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.resource import ResourceInstance
from support.kubernetes_api import Api
from support.service_samples import of_cluster

from psfleet.errors import UsageError
from psfleet.launch.up import start
from psfleet.manifests.kubernetes.names import labels
from psfleet.platforms.kubernetes import platform
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.platforms.kubernetes.platform import Kubernetes

KINDS = ["ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Secret", "Job"]


class Namespace:
    """A namespace's objects by kind and name, as the dynamic client shows them.

    Attributes:
        forced: By kind and name of each object that was applied: whether its fields were taken over.
        patched: Bodies of patches, by kind and name.
    """

    namespace = "here"

    def __init__(self) -> None:
        self.labels: dict[tuple[str, str], Mapping[str, str] | None] = {}
        self.forced: dict[tuple[str, str], bool] = {}
        self.patched: dict[tuple[str, str], Any] = {}
        self.resources = self

    def get(self, api_version: str, kind: str) -> Any:
        """The client of a kind."""

        def get(name: str, namespace: str) -> Any:
            if (kind, name) not in self.labels:
                raise ApiException(status=404, reason="Not Found")
            return ResourceInstance(None, {"kind": kind, "metadata": {"name": name, "labels": self.labels[kind, name]}})

        def apply(body: Any, namespace: str, field_manager: str, force_conflicts: bool | None) -> Any:
            self.forced[kind, body["metadata"]["name"]] = bool(force_conflicts)
            return body

        def patch(body: Any, name: str, namespace: str, content_type: str) -> None:
            assert content_type == "application/merge-patch+json"
            self.patched[kind, name] = body

        return SimpleNamespace(get=get, server_side_apply=apply, patch=patch)


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


@pytest.fixture
def objects(namespace: Namespace) -> FleetObjects:
    made = FleetObjects(namespace)  # type: ignore[arg-type]
    made.__dict__["_dynamic"] = namespace
    return made


def content(kind: str, name: str = "small") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels("small")}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theirs", [None, {"app": "web"}, labels("other")], ids=["none", "foreign", "another fleet"])
def test_an_object_of_another_owner_is_named_and_not_touched(
    namespace: Namespace, objects: FleetObjects, kind: str, theirs: Mapping[str, str] | None
) -> None:
    namespace.labels[kind, "small"] = theirs
    refusal = f"{kind} small in namespace here is not of fleet small, expected one with the labels .*: change the job's"
    with pytest.raises(UsageError, match=refusal):
        objects.require_own("small", [content("Service"), content(kind)])
    with pytest.raises(UsageError, match=refusal):
        objects.apply("small", [content(kind)])
    assert namespace.forced == {}


def test_fields_are_taken_over_only_in_objects_that_the_fleet_has(namespace: Namespace, objects: FleetObjects) -> None:
    """Those of `kubectl apply`, for example."""
    namespace.labels["ConfigMap", "small"] = labels("small")
    objects.apply("small", [content("ConfigMap"), content("Service")])
    assert namespace.forced == {("ConfigMap", "small"): True, ("Service", "small"): False}


def test_an_owner_is_added_without_a_change_of_anything_else(namespace: Namespace, objects: FleetObjects) -> None:
    owner = SimpleNamespace(metadata=SimpleNamespace(name="small-chief", uid="u"))
    objects.set_owner([content("Service")], owner)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "small-chief", "uid": "u"}
    assert namespace.patched == {("Service", "small"): {"metadata": {"ownerReferences": [reference]}}}


def test_an_api_that_refuses_to_show_an_object_is_an_error(namespace: Namespace, objects: FleetObjects) -> None:
    def get(**which: str) -> None:
        raise ApiException(status=403, reason="Forbidden")

    namespace.get = lambda **which: SimpleNamespace(get=get)  # type: ignore[assignment, method-assign]
    with pytest.raises(UsageError, match="Kubernetes refuses to read Secret small: 403 Forbidden"):
        objects.apply("small", [content("Secret")])


def test_the_kinds_of_a_cluster_are_kept_in_no_file(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can write a file of a known name in a folder that all share."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    FleetObjects(Cluster()).apply("small", [content("ConfigMap"), content("Secret")])
    assert ("secrets", "small") in api.objects
    assert not list(temporary.iterdir())


def test_a_policy_that_another_command_makes_while_one_removes_the_fleet_stays(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `psfleet serve` while `psfleet down` awaits the end of the pods: the ports of the new pods stay closed."""
    start(Kubernetes(), of_cluster(tmp_path))
    closed = {key: each for key, each in api.objects.items() if key[0] == "networkpolicies"}

    def others_start(*arguments: Any) -> None:
        for key, each in closed.items():
            api.objects[key] = {**each, "metadata": {**each["metadata"], "uid": "another"}}

    monkeypatch.setattr(platform, "wait_until_gone", others_start)
    assert Kubernetes().remove("digits-serve", results=False)
    assert api.objects.keys() == closed.keys()
