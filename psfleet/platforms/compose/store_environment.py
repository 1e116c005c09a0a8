"""Checks that what the environment says of an object store holds in containers, too, before any is started."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.job.store_url import scheme_of
from psfleet.manifests.compose.store_access import files
from psfleet.manifests.container import USER
from psfleet.service import settings

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": (),
    "az": ("AZURE_STORAGE_CONNECTION_STRING",),
}
"""By scheme of a store's URL, the variables with the URL of the service, of which the first that is set counts."""
PUBLIC = {"s3": "https://amazonaws.com", "gs": "https://googleapis.com", "az": "https://core.windows.net"}
"""The service where no variable names one: the domain of its hosts, which differ by region or account."""
URL = re.compile(r"https?://[^\s;]+", re.IGNORECASE)
LOOPBACK = re.compile(r"(.+\.)?localhost|127(\.\d+){3}|::1|0\.0\.0\.0", re.IGNORECASE)
IN_A_CONTAINER = "which in a container is the container itself"
READABLE = 0o4


def require_usable(job: Job) -> None:
    """Checks addresses and files that the environment names for the store of a job, if it has one.

    Raises:
        UsageError: The service or the proxy before it has an address of loopback, or a file cannot be mounted.
    """
    if job.checkpoint.store is None:
        return
    scheme = scheme_of(job.checkpoint.store)
    endpoint = PUBLIC[scheme]
    for name, value in list(settings.variables(ENDPOINTS[scheme]).items())[:1]:
        endpoint = next(iter(URL.findall(value)), endpoint)
        if LOOPBACK.fullmatch(_host(endpoint)):
            raise UsageError(
                f"{name} has {endpoint}, {IN_A_CONTAINER}: expected an address of this machine on a network, at which "
                "the store listens (`hostname -I` lists them), or another machine"
            )
    _require_proxy(endpoint)
    for name, path in files(job).items():
        _require_readable(name, Path(path))


def _require_proxy(endpoint: str) -> None:
    """Checks the proxy on the way to the service; the variable in small letters counts before the other one."""
    service = urlsplit(endpoint)
    wanted = f"{service.scheme.lower()}_proxy"
    for name, url in list(settings.variables((wanted, wanted.upper())).items())[:1]:
        host = _host(url if "://" in url else f"http://{url}")
        if LOOPBACK.fullmatch(host) and not proxy_bypass(service.netloc):
            raise UsageError(
                f"{name} is at {host}, {IN_A_CONTAINER}: expected an address of this machine on a network "
                f"(`hostname -I` lists them), or {service.hostname} in NO_PROXY"
            )


def _require_readable(name: str, path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"{name} is {path}, expected a file that exists: the containers mount it")
    if path.stat().st_mode & READABLE != READABLE:
        raise UsageError(
            f"{name} is {path}, which cannot be read by user {USER}, as which containers run: `chmod o+r {path}`"
        )


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
