"""A parameter server from its start to the end of its run."""

from __future__ import annotations

import logging
import time

from ps_service.control import ControlServicer
from ps_service.runs import LINGER_SECS, Run
from psfleet.control.server import serving
from psfleet.errors import DeadlineError
from psfleet.process import Stop
from psfleet.runtime.server import boot
from psfleet.settings import Settings
from psfleet.waiting import wait_until

logger = logging.getLogger("psfleet.ps")


def serve(settings: Settings, stop: Stop) -> int:
    """Serves until the run is over or a signal comes; the exit code.

    Raises:
        LostPeerError: A port is taken.
        DeadlineError: No worker spoke for the job's `deadlines.stall_secs`.
        StoppedError: A signal came first.
    """
    target = boot(settings.address, settings.job.device if settings.job else None)
    servicer = ControlServicer(target, settings.run, settings.cause)
    with serving(settings.address, servicer):
        logger.info("ps is ready at %s", settings.address.data)
        while not servicer.finished.is_set():
            if stop.event.wait(0.1) and not servicer.finished.is_set():
                raise stop.error()
            _look(servicer, settings)
        return _leave(servicer.runs()[0])


def _look(servicer: ControlServicer, settings: Settings) -> None:
    """Logs a step that waits, drops runs that are over, and gives up when nobody is there."""
    servicer.drop_finished()
    if settings.job is None:
        return
    deadlines = settings.job.deadlines
    for run in servicer.runs():
        if time.monotonic() - run.last_heard > deadlines.stall_secs:
            raise DeadlineError("a sign of life from any worker", deadlines.stall_secs)
        run.log_slow_step(deadlines.slow_secs)


def _leave(run: Run) -> int:
    """Stays until every worker knows, then names the exit code of the run."""
    try:
        wait_until(run.everybody_knows, LINGER_SECS, "the workers to hear of the end")
    except DeadlineError as error:
        logger.info("%s", error)
    assert run.outcome is not None
    return run.outcome.exit_code
