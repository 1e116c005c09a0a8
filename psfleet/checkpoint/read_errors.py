"""What the error of a read says of a checkpoint: that it is damaged, or that it cannot be read now."""

from __future__ import annotations

import errno
import os

from psfleet.errors import NoCheckpointError, StorageError

PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
)
"""Errors of this process, of its machine or of a network file system; a disk that has lost a block gives EIO."""


class UnreadableError(StorageError, OSError):
    """A checkpoint cannot be read now; an OSError for those who read one, and go on without it."""


def read_error(what: str, error: Exception) -> NoCheckpointError | UnreadableError:
    """The error to raise: an older checkpoint takes the place of a damaged one, not of one that cannot be read now.

    Args:
        what: The file, or what of it.
        error: Of the read; not of a store, whose errors are never damage.
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None else str(error)
    kind = UnreadableError if number in PASSING else NoCheckpointError
    return kind(f"{what} cannot be read: {reason}")
