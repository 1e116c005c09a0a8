"""Which error of a worker ends the run of the whole fleet, and how the ps learn of it."""

from __future__ import annotations

from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import (
    DataStallError,
    PermanentError,
    ProgramError,
    PsfleetError,
    ReplacedError,
    StoppedError,
)
from psfleet.service.process import Stop


def report_failure(fleet: FleetClient, error: PsfleetError, index: int, stop: Stop) -> int:
    """Ends the run on every ps, if the error of this worker ends it and they have not been informed.

    Returns:
        Number of ps that know it now.

    Raises:
        ReplacedError: Another process has this worker's index, and the run continues.
    """
    if error.is_reported or not (ends_run(error) or (index == 0 and not is_replaced(error, stop))):
        return 0
    error.is_reported = True
    return fleet.finish(pb.Outcome(exit_code=error.exit_code, message=str(error), details=error.details))


def ends_run(error: PsfleetError) -> bool:
    """Whether the fleet cannot train on without the worker that raised."""
    return isinstance(error, PermanentError) or (isinstance(error, DataStallError) and error.ends_run)


def is_replaced(error: PsfleetError, stop: Stop) -> bool:
    """Whether this chief ends and another chief process resumes the run, and reports."""
    is_left_behind = isinstance(error, DataStallError) and not error.ends_run
    return (
        is_left_behind or isinstance(error, ReplacedError) or (isinstance(error, StoppedError) and stop.must_leave(0))
    )


def worker_error(outcome: pb.Outcome) -> PsfleetError:
    """The error of the worker that ended the run, as the chief reports it; the ps know it."""
    error = ProgramError(outcome.message, outcome.details)
    error.exit_code, error.is_reported = outcome.exit_code, True
    return error
