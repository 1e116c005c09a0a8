"""The client of an object store: its options, a deadline for each request, and one class of errors."""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from psfleet.errors import PsfleetError, StorageError, innermost
from psfleet.job.store_url import require_package
from psfleet.polling import run_within

T = TypeVar("T")

CALL_SECS = 60.0
"""How long one request may take, with the attempts of the store's client to repeat it."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # The client repeats a request that failed, and s3fs repeats that: a server that is gone is noticed in seconds.
    # More than one connection for an object would ask for its size first; large ones are read in blocks anyway.
    "s3": {
        "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"total_max_attempts": 2}},
        "max_concurrency": 1,
    },
    "gs": {},
    "az": {"anon": False},
}
"""Of the file systems of fsspec, by scheme. Service and credentials are those of the environment."""

DENIED = (401, 403)
FORBIDDEN = "Forbidden: "
"""Beginning of gcsfs's error for the HTTP status 403, an OSError without an attribute for it."""
NO_CONTAINER = "ContainerNotFound"
"""Azure's code of an error: there is no such bucket, which it calls a container."""

_moved: dict[int, int] = {}
"""By the kernel's id of a thread, the bytes that it has moved; see `bytes_moved`."""


class StoreError(StorageError, OSError):
    """A store refused a request, or did not answer: what is in it is not known.

    Attributes:
        is_denied: Whether the credentials are missing, wrong or not sufficient, or there is no such bucket: a retry
            fails until a user changes that.
    """

    def __init__(self, url: str, cause: str, is_denied: bool = False) -> None:
        super().__init__(errno.EACCES if is_denied else errno.EIO, cause, url)
        self.is_denied = is_denied

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@functools.cache
def file_system(scheme: str) -> Any:
    """The file system of a scheme; one for the process."""
    require_package(f"{scheme}://")
    # Imported here: only a job with a store needs it.
    import fsspec

    try:
        # Another process writes to the same folders: what they had a moment ago is of no use.
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **OPTIONS[scheme])
    except ValueError as error:
        # adlfs: the environment names no account, or no credentials.
        raise PermissionError(str(error)) from error


def bytes_moved(thread: int) -> int:
    """Bytes that a thread has read from stores and written to them; the kernel counts them for the client's thread."""
    return _moved.get(thread, 0)


def count(num_bytes: int) -> None:
    """Counts bytes that this thread has moved."""
    thread = threading.get_native_id()
    _moved[thread] = _moved.get(thread, 0) + num_bytes


def call(url: str, function: Callable[[], T]) -> T:
    """Calls a function of the file system within `CALL_SECS`.

    Args:
        url: Of the object or folder, for the error.

    Raises:
        FileNotFoundError, FileExistsError: The object does not exist, or does.
        StoreError: Any other error of the store.
    """
    try:
        return run_within(CALL_SECS, function)
    except TimeoutError as error:
        raise StoreError(url, f"the store has not answered for {CALL_SECS:g} s") from error
    except (PsfleetError, FileExistsError):
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    except Exception as error:
        # Any error: each store has its own classes.
        if any(getattr(each, "error_code", "") == NO_CONTAINER for each in _causes(error)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
        raise StoreError(url, innermost(error), any(map(_is_denied, _causes(error)))) from error


def attempt(function: Callable[[], object]) -> None:
    """Calls a function whose error is of no interest."""
    try:
        run_within(CALL_SECS, function)
    except Exception:
        return


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_denied(error: BaseException) -> bool:
    is_credentials = "Credentials" in type(error).__name__ or str(error).startswith(FORBIDDEN)
    # The HTTP status is `status_code` of adlfs's errors, and `code` of gcsfs's.
    status = getattr(error, "status_code", getattr(error, "code", None))
    return isinstance(error, PermissionError) or is_credentials or status in DENIED
