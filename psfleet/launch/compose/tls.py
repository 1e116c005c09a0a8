"""What docker compose adds to a fleet with `tls: true`: each role's certificate, made on this machine and mounted."""

from __future__ import annotations

from typing import Any

from psfleet.job.job import Job
from psfleet.launch import container
from psfleet.launch.certificates_folder import certificates_folder
from psfleet.launch.compose.mounts import bind


def prepare(job: Job) -> None:
    """Makes the certificates of a fleet that is to start, or renews old ones; nothing without TLS.

    Raises:
        UsageError: They cannot be read or written.
    """
    if job.tls:
        # Imported here: it takes 80 ms.
        from psfleet.tls import certificates

        certificates.ensure(certificates_folder(job.name))


def mounts(job: Job, role: str) -> list[dict[str, Any]]:
    """Volumes of a compose service that is a ps, a worker or the chief; none without TLS.

    The folder of the role alone: the authority's key stays outside of all containers.
    """
    if not job.tls:
        return []
    source = certificates_folder(job.name) / ("ps" if role == "ps" else "worker")
    return [bind(str(source).replace("$", "$$"), container.TLS)]
