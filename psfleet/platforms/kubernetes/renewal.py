"""Renews the certificates of a fleet that runs, while it is followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from psfleet.errors import UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.names import STANDING
from psfleet.manifests.kubernetes.tls_secrets import fleet_secrets, tls_secrets
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.fleet_record import recorded
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.tls import certificates
from psfleet.tls.identity import AUTHORITY

logger = logging.getLogger("psfleet.launch")

RENEW_SECS = 3600.0
"""Interval in which the certificates are looked at; they are renewed days before they end."""


class Renewal:
    """Renews the certificates of one fleet, and its Secrets; the kubelet updates the files within two minutes.

    Only the machine that started the fleet can do that: it has the authority.
    """

    def __init__(
        self,
        cluster: Cluster,
        objects: FleetObjects,
        job: Job | FleetFile,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._objects = objects
        self._job = job
        self._clock = clock
        self._next = clock()

    def look(self) -> None:
        """Renews the certificates in the last third of their validity; logs a warning if that fails.

        Raises:
            LostPeerError: The API does not answer.
        """
        if not self._job.tls or self._clock() < self._next:
            return
        self._next = self._clock() + RENEW_SECS
        try:
            self._renew()
        except UsageError as error:
            logger.warning("the certificates of fleet %s are not renewed: %s", self._job.name, error)

    def _renew(self) -> None:
        name, folder = self._job.name, certificates_folder(self._job.name)
        if not (folder / AUTHORITY).exists():
            raise UsageError(f"{folder / AUTHORITY} is missing, expected that of the machine that started the fleet")
        certificates.ensure(folder)
        changed = []
        for secret in tls_secrets(self._job) if isinstance(self._job, Job) else fleet_secrets(self._job):
            new, old = secret["data"], self._cluster.secret(secret["metadata"]["name"])
            if not old:
                # The fleet is being removed.
                continue
            if old.get(AUTHORITY) != new[AUTHORITY]:
                raise UsageError(f"{folder / AUTHORITY} is not the authority of the fleet, which trusts another one")
            if old != new:
                changed.append(secret)
        if changed:
            self._objects.apply(name, changed)
            logger.info("the certificates of fleet %s were renewed", name)


def renewal_of(cluster: Cluster, job: Job, fleet: str) -> Renewal | None:
    """Renews the certificates of a run; on a standing fleet those of the fleet, if this machine has its authority.

    Args:
        fleet: The standing fleet; empty: the run has ps of its own.
    """
    if not fleet:
        return Renewal(cluster, FleetObjects(cluster), job)
    found = recorded(cluster, fleet)
    if found is None or not (certificates_folder(fleet) / AUTHORITY).exists():
        return None
    return Renewal(cluster, FleetObjects(cluster, STANDING), found[0])
