"""The Secrets with the certificates of a fleet, made from the folder of a job's certificates on this machine."""

from __future__ import annotations

import logging
import math
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from psfleet.errors import BadJobError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.names import LOADER, PS, RUN, STANDING, WORKER, labels, tls_secret
from psfleet.tls import certificates
from psfleet.tls.identity import AUTHORITY, CERTIFICATE, KEY, ROLES, Identity

logger = logging.getLogger("psfleet.launch")

DAY_SECS = 24 * 3600


def ensure_certificates(job: Job) -> None:
    """Makes the certificates of a job that are missing, and renews those that would end before a run could.

    A run lasts at most `container.active_secs`; time in which its Jobs are suspended is not counted.

    Raises:
        UsageError: They cannot be read or written, or their authority has expired.
    """
    folder, lasting = certificates_folder(job.name), timedelta(seconds=job.container.active_secs)
    days = max(certificates.DAYS, math.ceil(job.container.active_secs / DAY_SECS) + 1)
    ends = certificates.ensure(folder, days, lasting)
    if ends < datetime.now(UTC) + lasting:
        logger.warning(
            "the authority of fleet %s ends on %s, which the run may outlast (container.active_secs): "
            "`psfleet certs %s --replace-authority` replaces it while no fleet of this name runs",
            job.name, f"{ends:%Y-%m-%d}", folder,
        )  # fmt: skip


def tls_secrets(job: Job, *, has_ps: bool = True) -> list[dict[str, Any]]:
    """The Secrets of the roles that a run has; none without TLS. The authority's key stays on this machine.

    Args:
        job: The job.
        has_ps: Whether there are ps: a study, a prediction and a service have none.

    Raises:
        UsageError: The certificates cannot be read.
    """
    roles = [*([PS] if has_ps else []), *([LOADER] if job.input.num_loaders else []), WORKER]
    return _secrets(job.name, roles, RUN) if job.tls else []


def fleet_secrets(file: FleetFile) -> list[dict[str, Any]]:
    """As `tls_secrets`, of all roles: of a standing fleet, its clients, and the loaders of its runs."""
    return _secrets(file.name, ROLES, STANDING) if file.tls else []


def _secrets(fleet: str, roles: Sequence[str], part_of: str) -> list[dict[str, Any]]:
    folder = certificates_folder(fleet)
    secrets = []
    for role in roles:
        try:
            # Not file by file: another command may be renewing them.
            found = Identity(folder / role).current()
        except BadJobError as error:
            raise UsageError(f"certificates in {folder}: {error}") from error
        files = {AUTHORITY: found.authority, CERTIFICATE: found.certificate, KEY: found.key}
        meta = {"name": tls_secret(fleet, role), "labels": labels(fleet, role, part_of)}
        # Not `stringData`, whose changes server-side apply does not follow.
        data = {name: b64encode(content).decode() for name, content in files.items()}
        secrets.append({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
    return secrets
