"""Access of the containers of a compose fleet to the object store of its checkpoints."""

from __future__ import annotations

from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.store_url import scheme_of

VARIABLES = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
    ),
    "gs": ("GOOGLE_CLOUD_PROJECT",),
    "az": (
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_CONNECTION_STRING",
    ),
}
"""By scheme of a store's URL, the variables by which its client finds the service and the credentials."""


def credentials(job: Job, role: str) -> dict[str, None]:
    """The variables by which ps and chief reach the store of checkpoints, if there is one.

    They have no value: compose takes it from its own environment, so that it is in no file.
    """
    if job.checkpoint.store is None or role == "worker":
        return {}
    return dict.fromkeys(VARIABLES[scheme_of(job.checkpoint.store)])


def require_closed(job: Job) -> None:
    """Refuses to put ps on a network that every user of the machine reaches, unless they close their ports by TLS."""
    if job.checkpoint.store is not None and not job.tls:
        raise BadJobError(
            f"tls is false, expected true with checkpoint.store {job.checkpoint.store} on docker compose: the ps reach "
            "it over a network from which every user of the machine reaches them"
        )
