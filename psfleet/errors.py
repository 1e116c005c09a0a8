"""The ways in which a run can end badly, each with the exit code that scripts and Kubernetes act on.

`TemporaryError` leaves may be retried from outside, `PermanentError` leaves must not: the same input would fail again.
"""

from __future__ import annotations

DONE = 0
BUG = 1
USAGE = 64
NO_CHECKPOINT = 65
PROGRAM_FAILED = 70
LOST_PEERS = 75
BAD_JOB = 78
SIGNAL_BASE = 128

PERMANENT_CODES = frozenset({USAGE, NO_CHECKPOINT, PROGRAM_FAILED, BAD_JOB})
"""Exit codes that a supervisor never answers with a restart."""


def innermost(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    return " ".join(str(error).split()) or type(error).__name__


class PsfleetError(Exception):
    """Base of every error that psfleet raises on purpose; its text is one line for the user."""

    exit_code = BUG


class PermanentError(PsfleetError):
    """Trying again with the same input gives the same result."""


class TemporaryError(PsfleetError):
    """Trying again may well succeed."""


class UsageError(PermanentError):
    """The command line asks for something that does not exist."""

    exit_code = USAGE


class NoCheckpointError(PermanentError):
    """Checkpoint files are there, but none of them is whole."""

    exit_code = NO_CHECKPOINT


class ProgramError(PermanentError):
    """The training program itself failed: an exception, a NaN loss, a wrong return value.

    `details` holds the program's own traceback as text, or is empty.
    """

    exit_code = PROGRAM_FAILED

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class BadJobError(PermanentError):
    """The job file is wrong, or the fleet or the checkpoint does not match it."""

    exit_code = BAD_JOB


class LostPeerError(TemporaryError):
    """A peer went away, or restarted and lost its state."""

    exit_code = LOST_PEERS


class StorageError(TemporaryError):
    """A checkpoint cannot be written: the disk is full, or gone."""

    exit_code = LOST_PEERS


class DeadlineError(TemporaryError):
    """A wait came to its deadline; the text names what was waited for and what was last seen."""

    exit_code = LOST_PEERS

    def __init__(self, what: str, timeout_secs: float, last_seen: object = None) -> None:
        seen = "" if last_seen is None else f"; last seen: {last_seen}"
        super().__init__(f"gave up after {timeout_secs:g} s waiting for {what}{seen}")
        self.what = what
        self.timeout_secs = timeout_secs
        self.last_seen = last_seen


class StoppedError(PsfleetError):
    """A signal asked the run to stop; everything applied so far is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number
        self.exit_code = SIGNAL_BASE + signal_number
