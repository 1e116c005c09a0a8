"""Starts and ends fleets on any platform."""

from __future__ import annotations

import logging

from psfleet.checkpoint.stored_run import delete_stored
from psfleet.errors import DONE, BadJobError, UsageError
from psfleet.job.activity import kind_of, named
from psfleet.launch.followers import starting
from psfleet.launch.platform import Platform, Request, chief_of
from psfleet.launch.shown import require

logger = logging.getLogger("psfleet.launch")

STOP_SECS = 60.0
"""Timeout for the stop of a chief whose job cannot be read."""


def start(platform: Platform, request: Request) -> bool:
    """Starts a fleet, unless a fleet of the same job still trains, or has ended and its results are to be copied.

    Of two commands of this user that do so at the same time, one starts the fleet; then the other one finds it.

    Returns:
        Whether this call has started it.

    Raises:
        UsageError: A fleet of this name trains another version of the job, trains while a fresh one is requested, or
            does something else.
        BadJobError: The results of an earlier run are to be deleted from a store that this machine may not use.
        DeadlineError: Another command has not started the fleet in `deadlines.start_secs`.
    """
    with starting(platform, request.job.name, request.job.deadlines.start_secs):
        if _is_started(platform, request):
            return False
        if request.fresh:
            # What is refused deletes nothing.
            platform.check(request)
            delete_stored(request.job)
        platform.apply(request)
    return True


def _is_started(platform: Platform, request: Request) -> bool:
    """Whether a fleet needs no start; see `start`.

    Raises:
        UsageError: As `start`.
    """
    name = request.job.name
    members = platform.members(name)
    chief = chief_of(members)
    if chief is None or chief.state == "created":
        return False
    if chief.activity != (wanted := kind_of(request.activity)):
        raise UsageError(
            f"fleet {name} {platform.where} as {named(chief.activity)}, expected another name for {named(wanted)}"
        )
    is_same = (platform.job(name), platform.activity(name)) == (request.job, request.activity)
    if not chief.is_over:
        if request.fresh:
            raise UsageError(f"--fresh: fleet {name} runs, expected one that was ended by `psfleet down {name}`")
        if not is_same:
            what = wanted or "job"
            raise UsageError(f"fleet {name} runs another version of the {what}: `psfleet down {name}` ends it first")
        return True
    is_permanent = any(member.ends_run for member in members)
    return is_same and not request.fresh and (chief.exit_code == DONE or is_permanent)


def down(platform: Platform, name: str, results: bool) -> None:
    """Ends a fleet and removes it; with `results`, its checkpoints and reports too.

    The chief is stopped first, while the others are there: it saves what was trained.

    Raises:
        UsageError: There is no such fleet, nor results of one if `results` is true.
    """
    if not remove(platform, name, results):
        require(platform, name)


def remove(platform: Platform, name: str, results: bool = False) -> bool:
    """As `down`, but returns False if nothing is there: a platform may remove a fleet some time after its end."""
    chief = chief_of(platform.members(name))
    if chief is not None and chief.state == "running":
        platform.stop(chief, _stop_secs(platform, name))
    return platform.remove(name, results)


def _stop_secs(platform: Platform, name: str) -> float:
    """How long the chief of a fleet may take to stop; a fleet whose job cannot be read must be removable, too."""
    try:
        return platform.job(name).deadlines.stop_secs
    except (UsageError, BadJobError) as error:
        logger.warning("%s; its chief gets %g s to stop", error, STOP_SECS)
        return STOP_SECS
