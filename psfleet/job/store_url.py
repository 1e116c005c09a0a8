"""URLs of object stores: the supported schemes, and the package that each needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec

from psfleet.errors import BadJobError

PACKAGES: Mapping[str, str] = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""By scheme of the URL, the fsspec implementation, which the extra of the scheme's name installs. Only S3 is tested."""
URL = re.compile(r"(?P<scheme>[a-z0-9]+)://(?P<bucket>[a-z0-9][a-z0-9._-]*)(?P<prefix>(/[A-Za-z0-9][A-Za-z0-9._=-]*)*)")


def checked(url: str) -> str:
    """A URL without a slash at its end.

    Raises:
        ValueError: It is not the URL of a supported object store, or has more than a bucket and a prefix: credentials
            in it would be in the job, the log and the report.
    """
    url = url.rstrip("/")
    found = URL.fullmatch(url)
    if found is None or found["scheme"] not in PACKAGES:
        schemes = ", ".join(f"{scheme}://" for scheme in PACKAGES)
        raise ValueError(
            f"it is not BUCKET/PREFIX with one of {schemes} before it; expected letters, digits and ._=- between "
            "slashes, and credentials in the environment"
        )
    return url


def scheme_of(url: str) -> str:
    """The scheme of a URL: `s3` of `s3://bucket/prefix`."""
    return url.partition("://")[0]


def require_package(url: str | None) -> None:
    """Checks that the package for a store is installed, without importing it.

    Args:
        url: `checkpoint.store` of a job; None: it has none, and needs no package.

    Raises:
        BadJobError: It is not installed; names the extra.
    """
    if url is None:
        return
    scheme = scheme_of(url)
    if find_spec(PACKAGES[scheme]) is None:
        raise BadJobError(
            f"checkpoint.store is {url}: package {PACKAGES[scheme]} is not installed, expected "
            f"pip install 'psfleet[{scheme}]', or an image with it (docs/containers.md)"
        )
