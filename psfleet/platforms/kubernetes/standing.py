"""Keeps fleets up on Kubernetes through its API: StatefulSets of ps and workers, and a pod for each client."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from psfleet.errors import PsfleetError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.platform import Member
from psfleet.manifests.kubernetes.names import STANDING
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.client_pod import ClientPod
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.fleet_record import recorded
from psfleet.platforms.kubernetes.fleet_secrets import renew
from psfleet.platforms.kubernetes.fleet_start import LOOK_SECS, STATEFUL_SET, FleetStart
from psfleet.platforms.kubernetes.jobs import on_fleet, place_of, verdict
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.platforms.kubernetes.standing_members import lacks_pods, standing_members
from psfleet.polling import wait_until

logger = logging.getLogger("psfleet.launch")

REMOVAL_SECS = 60.0
"""How long the API may take to remove pods, beyond their own time to end."""
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
        start = FleetStart(self._cluster, self._objects, self._reasons, file)
        try:
            start.record()
            start.apply()
            start.await_serving()
        except BaseException:
            # Ctrl-C, too: nothing is left behind that was not up.
            if start.is_new:
                self._take_down(start.access)
            raise
        return start.access

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
        renew(self._cluster, self._objects, file)
        return ClientPod(self._cluster, self._objects, self._reasons, file, access).run(client, arguments)

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `StandingPlatform`. Clients are members, too."""
        sets, pods = self._cluster.stateful_sets(name), [Pod(each) for each in self._cluster.pods(name, STANDING)]
        return standing_members(sets, pods, self._reasons.of(sets, pods))

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `StandingPlatform`."""
        return self._cluster.log(member.name, member.role, tail, follow)

    def _require_no_run_on(self, name: str) -> None:
        """Checks that no run trains on a fleet: it would wait in vain for its ps."""
        jobs = [each for each in self._cluster.jobs(None) if verdict(each) is None]
        places = [(place_of(each)[0], on_fleet(each)) for each in jobs]
        runs = sorted(run for run, place in places if place is not None and place.fleet == name)
        if runs:
            raise UsageError(
                f"fleet {name} has runs: {', '.join(runs)}, expected none: `psfleet down {runs[0]} --on kubernetes` "
                "ends the first"
            )

    def _take_down(self, access: FleetAccess) -> None:
        """Removes a fleet that could not be started, unless another command has ended it meanwhile."""
        name = access.name
        try:
            found = recorded(self._cluster, name)
            if found is not None and found[1].id == access.id:
                self._remove(name)
        except PsfleetError as failed:
            logger.warning("fleet %s is not removed: %s", name, failed)

    def _require(self, name: str) -> tuple[FleetFile, FleetAccess]:
        found = recorded(self._cluster, name)
        if found is None:
            raise self._unknown(name)
        return found[0], found[1].require_version()

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
