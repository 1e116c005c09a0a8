"""Access of the containers of a compose fleet to the object store of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psfleet.addresses import container_addresses
from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.store_url import scheme_of
from psfleet.manifests import container
from psfleet.manifests.compose.mounts import bind, plain
from psfleet.service import settings

VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_STS",
    ),
    "gs": ("GOOGLE_CLOUD_PROJECT",),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
    ),
}
"""By scheme of a store's URL, the variables by which its client finds the service and the credentials."""
FILES = {
    "s3": ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CA_BUNDLE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_FEDERATED_TOKEN_FILE",),
}
"""By scheme, the variables whose values are files: containers get these variables if they are set, and the files."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
"""The client of every store reads them; a variable in small letters counts before the other."""
NO_PROXY = ("no_proxy", "NO_PROXY")
LOOPBACK = "localhost,127.0.0.1"


def variables(job: Job, role: str) -> dict[str, str | None]:
    """The environment by which ps and chief reach the store of checkpoints, if there is one.

    Credentials have no value: compose takes it from its own environment, so that it is in no file.
    """
    if job.checkpoint.store is None or not _reaches(job, role):
        return {}
    scheme = scheme_of(job.checkpoint.store)
    found: dict[str, str | None] = dict.fromkeys(VARIABLES[scheme])
    found |= {name: f"{container.STORE}/{name}" for name in files(job)}
    proxies = settings.variables(PROXIES)
    if proxies:
        known = settings.variables(NO_PROXY)
        hosts = [LOOPBACK, *(address.host for address in container_addresses(job)[0])]
        value = plain(",".join([*hosts, *list(known.values())[:1]]))
        found |= {**dict.fromkeys(proxies), **dict.fromkeys(NO_PROXY, value)}
    return found


def mounts(job: Job, role: str) -> list[dict[str, Any]]:
    """The files that these variables name; read only."""
    if not _reaches(job, role):
        return []
    return [bind(plain(path), f"{container.STORE}/{name}") for name, path in files(job).items()]


def _reaches(job: Job, role: str) -> bool:
    """Whether the processes of a role read and write checkpoints: the chief and each ps."""
    return role in ("ps", "chief") or (role == "worker" and job.fleet.colocate)


def files(job: Job) -> dict[str, str]:
    """The files that the environment of this process names for the client of a job's store, by variable."""
    if job.checkpoint.store is None:
        return {}
    found = settings.variables(FILES[scheme_of(job.checkpoint.store)])
    return {name: str(Path(path).absolute()) for name, path in found.items()}


def require_closed(job: Job) -> None:
    """Refuses to put containers on a network that every user of the machine reaches, unless TLS closes their ports."""
    if job.checkpoint.store is not None and not job.tls:
        raise BadJobError(
            f"tls is false, expected true with checkpoint.store {job.checkpoint.store} on docker compose: containers "
            "reach it over a network from which every user of the machine reaches them"
        )
