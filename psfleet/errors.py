"""Exceptions with the exit codes by which scripts and Kubernetes decide about retries.

Subclasses of `TemporaryError` may be retried; those of `PermanentError` must not, because the same input fails again.
"""

from __future__ import annotations

import signal

DONE = 0
BUG = 1
USAGE = 64
NO_CHECKPOINT = 65
PROGRAM_FAILED = 70
LOST_PEERS = 75
BAD_JOB = 78
SIGNAL_BASE = 128
STOPPED = (SIGNAL_BASE + signal.SIGTERM, SIGNAL_BASE + signal.SIGINT)
"""Exit codes of a process that was asked to stop."""

PERMANENT_CODES = frozenset({USAGE, NO_CHECKPOINT, PROGRAM_FAILED, BAD_JOB})
"""Exit codes after which a process is not restarted."""


def innermost(error: BaseException) -> str:
    """The message of the innermost cause of an error, in one line."""
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    return " ".join(str(error).split()) or type(error).__name__


def cause_of_end(exit_code: int) -> str:
    """Why a process failed, from its exit code (128 + n for signal n); empty for exit code 0."""
    # Not every code above 128 stands for a signal: a container that its engine lost has 255.
    if exit_code - SIGNAL_BASE in list(signal.Signals):
        return f"killed by {signal.Signals(exit_code - SIGNAL_BASE).name}"
    return f"exit code {exit_code}" if exit_code != DONE else ""


class PsfleetError(Exception):
    """Base class of all errors of psfleet; the message is one line for the user.

    Attributes:
        is_reported: Whether the ps have been asked to end the run because of it.
        details: The traceback of the training program's exception, or empty.
    """

    exit_code = BUG
    is_reported = False
    details = ""


class PermanentError(PsfleetError):
    """A retry with the same input fails again."""


class TemporaryError(PsfleetError):
    """A retry can succeed."""


class UsageError(PermanentError):
    """The command line or the environment is unusable: bad arguments, missing files, TensorFlow not installed."""

    exit_code = USAGE


class NoCheckpointError(PermanentError):
    """There are checkpoints, but none is valid."""

    exit_code = NO_CHECKPOINT


class ProgramError(PermanentError):
    """The training program failed: an exception, a NaN loss, a wrong return value."""

    exit_code = PROGRAM_FAILED

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class BadJobError(PermanentError):
    """The job file or the environment is invalid, or the fleet or the checkpoint does not match the job."""

    exit_code = BAD_JOB


class LostPeerError(TemporaryError):
    """A peer is unreachable, or was restarted and lost its state.

    Attributes:
        retry_secs: When the peer can decide about the call, in seconds from now; 0: it does not say so.
    """

    exit_code = LOST_PEERS

    def __init__(self, message: str, retry_secs: float = 0.0) -> None:
        super().__init__(message)
        self.retry_secs = retry_secs


class NoAnswerError(LostPeerError):
    """A peer is there and answers nothing: its process is frozen, or cut off.

    Attributes:
        silent_secs: Since its last answer.
    """

    def __init__(self, message: str, silent_secs: float) -> None:
        super().__init__(message)
        self.silent_secs = silent_secs


class StoreAwayError(LostPeerError):
    """A store or a disk does not give the checkpoints for the moment.

    It is asked again until the fleet has made no step for `deadlines.stall_secs`.
    """


class ReplacedError(TemporaryError):
    """Another process has this worker's index: the ps refuse the calls of this one.

    This process ends without a report and without ending the run. If its platform restarts it, it joins as a new one.
    """

    exit_code = LOST_PEERS


class ChangedProgramError(TemporaryError):
    """A newer checkpoint is of another program, or of other options of it: the next process builds that one."""

    exit_code = LOST_PEERS


class QueueClosedError(PermanentError):
    """A queue of a standing fleet is closed: nothing can be added, or no element is left."""

    exit_code = PROGRAM_FAILED


class StorageError(TemporaryError):
    """A file cannot be written, or not be read now: the disk is full or unavailable."""

    exit_code = LOST_PEERS


class DeadlineError(TemporaryError):
    """A timeout expired.

    Attributes:
        what: What was waited for.
        timeout_secs: The timeout.
        last_seen: The last observed value, or None.
    """

    exit_code = LOST_PEERS

    def __init__(self, what: str, timeout_secs: float, last_seen: object = None) -> None:
        seen = "" if last_seen is None else f"; last seen: {last_seen}"
        super().__init__(f"gave up after {timeout_secs:g} s waiting for {what}{seen}")
        self.what = what
        self.timeout_secs = timeout_secs
        self.last_seen = last_seen


class DataStallError(DeadlineError):
    """A function of the training program that makes or reads a data set did not return in time.

    Attributes:
        ends_run: Whether the fleet cannot train without this process.
    """

    ends_run = True


class StoppedError(PsfleetError):
    """A signal stopped this process."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {_name(signal_number)}")
        self.signal_number = signal_number
        self.exit_code = SIGNAL_BASE + signal_number


def _name(signal_number: int) -> str:
    """The name of a signal: SIGINT."""
    try:
        return signal.Signals(signal_number).name
    except ValueError:
        return f"signal {signal_number}"
