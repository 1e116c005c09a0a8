"""The objects of a fleet: created, replaced and deleted, as far as they are the fleet's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError

from psfleet.errors import UsageError
from psfleet.manifests.kubernetes.names import RUN, selector, selector_text
from psfleet.platforms.kubernetes.api import (
    CONFLICT,
    NOT_FOUND,
    Cluster,
    label_selector,
    suppress_missing,
    suppress_status,
    translate_errors,
)
from psfleet.polling import wait_until

MANAGER = "psfleet"
"""Owner of the fields that `psfleet up` applies."""
JOB = ("batch/v1", "Job")


class FleetObjects:
    """Objects of fleets in the namespace of a cluster.

    Args of the constructor:
        part_of: STANDING if the fleets are standing ones, RUN if they are those of runs.
    """

    def __init__(self, cluster: Cluster, part_of: str = RUN) -> None:
        self._cluster = cluster
        self._part_of = part_of

    def require_own(self, name: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """Checks that no object of another owner has the kind and name of an object of a fleet.

        Raises:
            UsageError: There is one.
        """
        for content in objects:
            self._is_there(name, content)

    def apply(self, name: str, objects: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Creates objects of a fleet, or replaces those that it has; returns them as the API has stored them.

        Server-side apply takes over fields that another tool manages only in objects of the fleet.

        Raises:
            UsageError: An object has another owner.
        """
        applied = []
        for content in objects:
            is_own = self._is_there(name, content)
            with translate_errors(f"apply {content['kind']} {content['metadata']['name']}"):
                applied.append(
                    self._resource(content).server_side_apply(
                        body=dict(content),
                        namespace=self._cluster.namespace,
                        field_manager=MANAGER,
                        force_conflicts=True if is_own else None,
                    )
                )
        return applied

    def set_owner(self, objects: Sequence[Mapping[str, Any]], owner: Any, kind: tuple[str, str] = JOB) -> None:
        """Makes an object of some kind (API version and kind) the owner of objects: Kubernetes deletes them with it."""
        version, name = kind
        reference = {"apiVersion": version, "kind": name, "name": owner.metadata.name, "uid": owner.metadata.uid}
        body = {"metadata": {"ownerReferences": [reference]}}
        for content in objects:
            name = content["metadata"]["name"]
            with translate_errors(f"set the owner of {content['kind']} {name}"):
                self._resource(content).patch(
                    body=body, name=name, namespace=self._cluster.namespace, content_type="application/merge-patch+json"
                )

    def disown(self, name: str, kind: tuple[str, str]) -> dict[str, str]:
        """Removes the owners of a fleet's objects of a kind: they are not deleted with these.

        Returns:
            The uids of these objects by their names.
        """
        version, named = kind
        found: dict[str, str] = {}
        with translate_errors(f"remove the owner of {named} of fleet {name}"):
            resource = self._dynamic.resources.get(api_version=version, kind=named)
            for item in resource.get(namespace=self._cluster.namespace, label_selector=self._selector(name)).items:
                found[item.metadata.name] = item.metadata.uid
                with suppress_missing():
                    resource.patch(
                        body={"metadata": {"ownerReferences": None}}, name=item.metadata.name,
                        namespace=self._cluster.namespace, content_type="application/merge-patch+json",
                    )  # fmt: skip
        return found

    def remove_same(self, kind: tuple[str, str], uids: Mapping[str, str]) -> None:
        """Deletes objects of a kind, by their names and uids; not those of these names that were created meanwhile."""
        version, named = kind
        for name, uid in uids.items():
            with translate_errors(f"delete {named} {name}"), suppress_status(NOT_FOUND, CONFLICT):
                self._dynamic.resources.get(api_version=version, kind=named).delete(
                    name=name, namespace=self._cluster.namespace, body={"preconditions": {"uid": uid}}
                )

    def _selector(self, name: str) -> str:
        return label_selector(name, self._part_of)

    def _is_there(self, fleet: str, content: Mapping[str, Any]) -> bool:
        """Whether a fleet has an object of this kind and name; see `require_own`."""
        kind, name = content["kind"], content["metadata"]["name"]
        with translate_errors(f"read {kind} {name}"), suppress_missing():
            found = self._resource(content).get(name=name, namespace=self._cluster.namespace)
            labels = found.to_dict()["metadata"].get("labels") or {}
            own = selector(fleet, None, self._part_of)
            if any(labels.get(key) != value for key, value in own.items()):
                named = "job" if self._part_of == RUN else "fleet"
                raise UsageError(
                    f"{kind} {name} in namespace {self._cluster.namespace} is not of fleet {fleet}, expected one with "
                    f"the labels {selector_text(own)}, or none: change the {named}'s name, or delete it"
                )
            return True
        return False

    def _resource(self, content: Mapping[str, Any]) -> Any:
        """The client of an object's kind."""
        return self._dynamic.resources.get(api_version=content["apiVersion"], kind=content["kind"])

    def remove_all(self, name: str, kinds: Sequence[tuple[str, str]]) -> bool:
        """Deletes a fleet's objects of the given kinds (API version and kind), and the objects that they own.

        Returns:
            Whether there were any.
        """
        is_found = False
        where = {"namespace": self._cluster.namespace}
        for version, kind in kinds:
            with translate_errors(f"delete {kind} of fleet {name}"), suppress(ResourceNotFoundError):
                resource = self._dynamic.resources.get(api_version=version, kind=kind)
                for item in resource.get(**where, label_selector=self._selector(name)).items:
                    is_found = True
                    with suppress_missing():
                        resource.delete(name=item.metadata.name, **where, body={"propagationPolicy": "Background"})
        return is_found

    @cached_property
    def _dynamic(self) -> DynamicClient:
        """A client for objects of any kind; it asks the API which kinds there are.

        By default it keeps the answer in the folder for temporary files, in a file whose name the API's address gives:
        the kinds of an earlier cluster at this address, or a link of another user.
        """
        with TemporaryDirectory(prefix="psfleet-") as folder:
            return DynamicClient(self._cluster.api, cache_file=str(Path(folder) / "kinds.json"))


def wait_until_gone(name: str, listings: Sequence[Callable[[str], list[Any]]], timeout_secs: float, what: str) -> None:
    """Waits until the API lists no more of a fleet's objects.

    Raises:
        DeadlineError: It still does; names them.
    """

    def left() -> list[str]:
        return [found.metadata.name for listing in listings for found in listing(name)]

    wait_until(left, timeout_secs, what, done=operator.not_, poll_secs=0.5)
