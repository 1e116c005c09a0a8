"""Keeps fleets up on Kubernetes through its API: StatefulSets of ps and workers, and a pod for each client."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psfleet
from psfleet.errors import BadJobError, LostPeerError, PsfleetError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.kubernetes.api import Cluster
from psfleet.launch.kubernetes.client_pod import ClientPod
from psfleet.launch.kubernetes.events import WaitReasons
from psfleet.launch.kubernetes.fleet_record import new_access, recorded
from psfleet.launch.kubernetes.jobs import verdict
from psfleet.launch.kubernetes.objects import FleetObjects
from psfleet.launch.kubernetes.pods import Pod
from psfleet.launch.kubernetes.renewal import Renewal
from psfleet.launch.kubernetes.standing_members import lacks_pods, not_serving, require_lasting, standing_members
from psfleet.launch.platform import Member
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.names import INSTANCE, ON_FLEET, STANDING
from psfleet.manifests.kubernetes.standing import render_fleet
from psfleet.manifests.kubernetes.tls_secrets import fleet_secrets
from psfleet.polling import wait_until
from psfleet.tls import certificates
from psfleet.tls.identity import AUTHORITY

logger = logging.getLogger("psfleet.launch")

LOOK_SECS = 1.0
REMOVAL_SECS = 60.0
"""How long the API may take to remove pods, beyond their own time to end."""
STATEFUL_SET = ("apps/v1", "StatefulSet")
PODS = (STATEFUL_SET, ("v1", "Pod"))
KINDS = (
    ("v1", "Service"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "ConfigMap"),
)
"""Kinds of a fleet's other objects; the ConfigMap, without which there is no fleet, is the last."""
OUTLIVES_PODS = "NetworkPolicy"
"""Kind of objects that must stay until the last pod has ended: only they close its ports."""


class KubernetesFleets:
    """A `StandingPlatform` in a namespace of a cluster."""

    look_secs = LOOK_SECS

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self._context, self._namespace = context, namespace

    @property
    def where(self) -> str:
        """See `StandingPlatform`."""
        return f"stands in namespace {self._cluster.namespace}"

    def up(self, file: FleetFile) -> FleetAccess:
        """See `StandingPlatform`."""
        found = recorded(self._cluster, file.name)
        if found is not None and found[0] != file:
            raise UsageError(
                f"fleet {file.name} is up with other settings, expected the same, or "
                f"`psfleet fleet down {file.name} --on kubernetes` first"
            )
        access = self.access(file.name) if found is not None else new_access(file)
        self._ensure_certificates(file, found is None)
        objects = render_fleet(file, access)
        self._objects.require_own(file.name, objects if found is not None else [*fleet_secrets(file), *objects])
        is_new = found is None and not self._cluster.stateful_sets(file.name)
        try:
            if found is None or not self._is_whole(file.name, objects):
                self._apply(file.name, [*fleet_secrets(file), *objects])
            self._await_serving(file)
        except BaseException:
            # Ctrl-C, too: nothing is left behind that was not up.
            if is_new:
                self._take_down(file.name)
            raise
        return access

    def down(self, name: str) -> None:
        """See `StandingPlatform`. The ports stay closed until the last pod has ended."""
        self._require_no_run_on(name)
        self._remove(name)

    def _remove(self, name: str) -> None:
        pods = self._cluster.pods(name, STANDING)
        is_found = self._objects.remove_all(name, PODS)
        grace = max([pod.spec.termination_grace_period_seconds or 0 for pod in pods], default=0)

        def left() -> list[str]:
            listed = [*self._cluster.stateful_sets(name), *self._cluster.pods(name, STANDING)]
            return [each.metadata.name for each in listed]

        if is_found:
            what = f"the pods of fleet {name} to end"
            wait_until(left, grace + REMOVAL_SECS, what, done=operator.not_, poll_secs=0.5)
        if not self._objects.remove_all(name, KINDS) and not is_found:
            raise self._unknown(name)

    def access(self, name: str) -> FleetAccess:
        """See `StandingPlatform`."""
        return self._require(name)[1]

    def run(self, name: str, client: Path, arguments: Sequence[str]) -> int:
        """See `StandingPlatform`."""
        file, access = self._require(name)
        self._ensure_certificates(file, is_new=False)
        return ClientPod(self._cluster, self._objects, self._reasons, file, access).run(client, arguments)

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `StandingPlatform`. Clients are members, too."""
        return self._members(self._cluster.stateful_sets(name), self._pods(name))

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `StandingPlatform`."""
        return self._cluster.log(member.name, member.role, tail, follow)

    def _require_no_run_on(self, name: str) -> None:
        """Checks that no run trains on a fleet: it would wait in vain for its ps."""
        jobs = [each for each in self._cluster.jobs(None) if each.metadata.labels.get(ON_FLEET) == name]
        runs = sorted(each.metadata.labels[INSTANCE] for each in jobs if verdict(each) is None)
        if runs:
            raise UsageError(
                f"fleet {name} has runs: {', '.join(runs)}, expected none: `psfleet down {runs[0]} --on kubernetes` "
                "ends the first"
            )

    def _ensure_certificates(self, file: FleetFile, is_new: bool) -> None:
        """Makes the certificates of a new fleet; renews those of one that is up, if this machine has its authority."""
        folder = certificates_folder(file.name)
        if file.tls and is_new:
            certificates.ensure(folder)
        elif (folder / AUTHORITY).exists():
            Renewal(self._cluster, self._objects, file).look()

    def _pods(self, name: str | None) -> list[Pod]:
        return [Pod(each) for each in self._cluster.pods(name, STANDING)]

    def _members(self, sets: Sequence[Any], pods: Sequence[Pod]) -> list[Member]:
        return standing_members(sets, pods, self._reasons.of(sets, pods))

    def _is_whole(self, name: str, objects: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a fleet has all its StatefulSets: then it stays as it is."""
        wanted = {each["metadata"]["name"] for each in objects if each["kind"] == STATEFUL_SET[1]}
        return wanted <= {each.metadata.name for each in self._cluster.stateful_sets(name)}

    def _apply(self, name: str, objects: Sequence[Mapping[str, Any]]) -> None:
        *others, ps = objects
        self._objects.apply(name, others)
        (owner,) = self._objects.apply(name, [ps])
        owned = [each for each in others if each["kind"] != OUTLIVES_PODS]
        self._objects.set_owner(owned, owner, STATEFUL_SET)

    def _await_serving(self, file: FleetFile) -> None:
        """Waits until every ps and worker serves; logs once why a pod waits.

        Raises:
            LostPeerError: A process fails in a way that would recur.
            DeadlineError: They do not serve in time.
        """
        reported: set[str] = set()

        def missing() -> str:
            try:
                sets, pods = self._cluster.stateful_sets(file.name), self._pods(file.name)
                members = self._members(sets, pods)
            except LostPeerError as error:
                return str(error)
            require_lasting(file.name, pods)
            for member in members:
                if member.problem and member.problem not in reported:
                    reported.add(member.problem)
                    logger.warning("pod %s waits: %s", member.name, member.problem)
            return not_serving(members)

        what = f"fleet {file.name} to serve"
        wait_until(missing, file.deadlines.start_secs, what, done=operator.not_, poll_secs=LOOK_SECS)

    def _take_down(self, name: str) -> None:
        """Removes a fleet that could not be started."""
        try:
            self._remove(name)
        except PsfleetError as failed:
            logger.warning("fleet %s is not removed: %s", name, failed)

    def _require(self, name: str) -> tuple[FleetFile, FleetAccess]:
        found = recorded(self._cluster, name)
        if found is None:
            raise self._unknown(name)
        if found[1].version != psfleet.__version__:
            raise BadJobError(f"fleet {name} has psfleet {found[1].version}, expected {psfleet.__version__}")
        return found

    def _unknown(self, name: str) -> UsageError:
        names = {each.fleet for each in self.members(None)}
        known = ", ".join(sorted(names)) or "there is none"
        return UsageError(
            f"no fleet {name!r} {self.where}, expected one that `psfleet fleet up` started there: {known}"
        )

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._context, self._namespace)

    @cached_property
    def _objects(self) -> FleetObjects:
        return FleetObjects(self._cluster, STANDING)

    @cached_property
    def _reasons(self) -> WaitReasons:
        return WaitReasons(self._cluster, noun="StatefulSet", lacks=lacks_pods)
