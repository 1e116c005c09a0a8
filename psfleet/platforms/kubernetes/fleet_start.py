"""Starts a standing fleet in a namespace, or attaches to one that another command starts at the same time."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.kubernetes.names import STANDING
from psfleet.manifests.kubernetes.standing import render_fleet
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.fleet_record import new_access, recorded
from psfleet.platforms.kubernetes.fleet_secrets import named_secrets, secrets_to_apply
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.platforms.kubernetes.standing_members import not_serving, require_lasting, standing_members
from psfleet.polling import wait_until

logger = logging.getLogger("psfleet.launch")

LOOK_SECS = 1.0
APPLY_SECS = 30.0
"""How long another command may take to apply the objects of a fleet that it has recorded; then it counts as dead."""
STATEFUL_SET = ("apps/v1", "StatefulSet")
RECORD = "ConfigMap"
"""Kind of the record of a fleet."""
OUTLIVES_PODS = "NetworkPolicy"
"""Kind of objects that must stay until the last pod has ended: only they close its ports."""

Object = Mapping[str, Any]


class FleetStart:
    """One start of a fleet. Of several commands, the one that creates its record decides its id; the others attach.

    Attributes:
        access: What processes and clients know of the fleet.
        is_new: Whether this command has made it, so that a failure to start removes it.
    """

    def __init__(self, cluster: Cluster, objects: FleetObjects, reasons: WaitReasons, file: FleetFile) -> None:
        self._cluster, self._objects, self._reasons, self._file = cluster, objects, reasons, file
        self._has_recorded = self.is_new = False
        self.access = new_access(file)

    def record(self) -> None:
        """Creates the fleet's record, or reads that of a fleet that is up or that another command starts.

        Raises:
            UsageError: The fleet is up with other settings, or an object of another owner has a name that it needs.
            BadJobError: The fleet is of another version of psfleet.
        """
        name = self._file.name
        found = recorded(self._cluster, name)
        if found is None and not self._has_created_record():
            found = recorded(self._cluster, name)
            if found is None:
                raise UsageError(f"another command ends fleet {name}, expected one at a time")
        if found is None:
            return
        if found[0] != self._file:
            raise UsageError(
                f"fleet {name} is up with other settings, expected the same, or `psfleet fleet down {name} "
                "--on kubernetes` first"
            )
        self.access = found[1].require_version()

    def apply(self) -> None:
        """Creates the objects that are missing; a fleet that has all stays as it is, up to its certificates."""
        is_whole = not self._has_recorded and self._awaits_others()
        secrets = secrets_to_apply(self._cluster, self._objects, self._file, self._has_recorded, is_whole)
        if is_whole:
            return
        objects = render_fleet(self._file, self.access)
        *others, ps = [each for each in objects if each["kind"] != RECORD]
        self._objects.apply(self._file.name, [*secrets, *others])
        (owner,) = self._objects.apply(self._file.name, [ps])
        owned = [each for each in others if each["kind"] != OUTLIVES_PODS]
        # The record comes last: see `_is_whole`.
        self._objects.set_owner([*named_secrets(self._file), *owned, _record_of(objects)], owner, STATEFUL_SET)

    def await_serving(self) -> None:
        """Waits until every ps and worker serves; logs once why a pod waits.

        Raises:
            LostPeerError: A process fails in a way that would recur, or another command ends the fleet.
            DeadlineError: They do not serve in time.
        """
        reported: set[str] = set()
        has_looked = False

        def missing() -> str:
            nonlocal has_looked
            try:
                self._require_recorded()
                sets, pods = self._cluster.stateful_sets(self._file.name), self._pods()
                members = standing_members(sets, pods, self._reasons.of(sets, pods))
                has_looked = True
            except _EndedError:
                raise
            except (LostPeerError, UsageError) as error:
                # After a first success, a refusal may be temporary: an expired token, a restarting server.
                if isinstance(error, UsageError) and not has_looked:
                    raise
                return str(error)
            require_lasting(self._file.name, pods)
            for member in members:
                if member.problem and member.problem not in reported:
                    reported.add(member.problem)
                    logger.warning("pod %s waits: %s", member.name, member.problem)
            return not_serving(members)

        what = f"fleet {self._file.name} to serve"
        wait_until(missing, self._file.deadlines.start_secs, what, done=operator.not_, poll_secs=LOOK_SECS)

    def _has_created_record(self) -> bool:
        """Creates the record; False: another command has."""
        objects = render_fleet(self._file, self.access)
        self._objects.require_own(self._file.name, [*named_secrets(self._file), *objects])
        # Before it is there: an interrupt in between removes it, if it is this command's.
        self.is_new = not self._cluster.stateful_sets(self._file.name)
        self._has_recorded = self._cluster.create_config_map(_record_of(objects))
        self.is_new = self.is_new and self._has_recorded
        return self._has_recorded

    def _awaits_others(self) -> bool:
        """Whether the fleet has all its objects, at once or because another command creates them."""
        if self._is_whole():
            return True
        logger.info("fleet %s is not complete; another command may be starting it", self._file.name)
        try:
            return wait_until(self._is_whole, APPLY_SECS, f"the objects of fleet {self._file.name}", poll_secs=0.5)
        except DeadlineError:
            return False

    def _is_whole(self) -> bool:
        """Whether the fleet has all its StatefulSets, and its record the owner that it gets last."""
        self._require_recorded()
        wanted = {each["metadata"]["name"] for each in render_fleet(self._file, self.access) if _is_set(each)}
        is_owned = self._cluster.has_owner(self._file.name)
        return is_owned and wanted <= {each.metadata.name for each in self._cluster.stateful_sets(self._file.name)}

    def _require_recorded(self) -> None:
        found = recorded(self._cluster, self._file.name)
        if found is None or found[1].id != self.access.id:
            raise _EndedError(f"fleet {self._file.name} was ended by another command while this one started it")

    def _pods(self) -> list[Pod]:
        return [Pod(each) for each in self._cluster.pods(self._file.name, STANDING)]


class _EndedError(LostPeerError):
    """The fleet is gone, or another one has its name."""


def _is_set(content: Object) -> bool:
    return bool(content["kind"] == STATEFUL_SET[1])


def _record_of(objects: Sequence[Object]) -> Object:
    return next(each for each in objects if each["kind"] == RECORD)
