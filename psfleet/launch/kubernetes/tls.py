"""What Kubernetes needs of a fleet with `tls: true`: each role's certificate as a Secret."""

from __future__ import annotations

from typing import Any

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.launch.certificates_folder import certificates_folder
from psfleet.launch.kubernetes.names import PS, WORKER, labels, tls_secret
from psfleet.tls import certificates
from psfleet.tls.identity import AUTHORITY, CERTIFICATE, KEY


def secrets(job: Job) -> list[dict[str, Any]]:
    """The Secrets of ps and workers, made from this machine's certificates of the job; none without TLS.

    Certificates that are missing are made, and old ones renewed. The authority's key stays on this machine.

    Raises:
        UsageError: They cannot be read or written.
    """
    if not job.tls:
        return []
    folder = certificates_folder(job.name)
    certificates.ensure(folder)
    found = []
    for role in (PS, WORKER):
        try:
            data = {name: (folder / role / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY)}
        except OSError as error:
            raise UsageError(f"certificates in {folder}: {error.strerror or error}") from error
        meta = {"name": tls_secret(job.name, role), "labels": labels(job.name, role)}
        found.append({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})
    return found
