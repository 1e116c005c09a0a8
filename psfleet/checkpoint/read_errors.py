"""Classifies errors of reading a checkpoint: it is damaged, or temporarily unreadable."""

from __future__ import annotations

import errno
import os

from psfleet.errors import NoCheckpointError, StorageError

TEMPORARY = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
)
"""Errors of the process, its machine or a network file system. Not EIO, which a disk with a bad block returns."""


class UnreadableError(StorageError, OSError):
    """A checkpoint is temporarily unreadable. An OSError, too, for callers that can do without the checkpoint."""


def read_error(what: str, error: Exception) -> NoCheckpointError | UnreadableError:
    """Returns the error to raise. An older checkpoint replaces a damaged one, but not a temporarily unreadable one.

    Args:
        what: The file.
        error: Of the read. Errors of a store are never damage, and are not passed here.
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None else str(error)
    kind = UnreadableError if number in TEMPORARY else NoCheckpointError
    return kind(f"{what} cannot be read: {reason}")
