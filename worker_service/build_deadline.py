"""A deadline for what a training program does on the main thread while it is loaded and built.

Keras keeps state for each thread, so that a program cannot be built on a thread of its own, as its data sets are made;
and nothing interrupts code that waits, for example for a download. A timer ends the process instead.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from psfleet.errors import DataStallError, PsfleetError

logger = logging.getLogger("psfleet.worker")

DEADLINES = 3
"""Multiples of `deadlines.first_secs`: building waits for `train`, `evaluate` and a first batch, with one for each."""


@contextmanager
def building(program: str, first_secs: float, report: Callable[[DataStallError], object]) -> Iterator[None]:
    """Context manager for a block that loads and builds a program; ends the process with 75 if it takes too long.

    Args:
        program: As in the job file.
        first_secs: Of the job's deadlines.
        report: Ends the run if the fleet cannot train without this worker; called before the process ends.
    """
    timer = threading.Timer(DEADLINES * first_secs, expire, (program, DEADLINES * first_secs, report, os._exit))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def expire(
    program: str, secs: float, report: Callable[[DataStallError], object], end_process: Callable[[int], object]
) -> None:
    """Ends the process; see `building`."""
    error = DataStallError(f"program {program!r} to be loaded and built", secs)
    try:
        with suppress(PsfleetError):
            report(error)
        faulthandler.dump_traceback()
    except Exception:
        # Any error: without this thread the process would wait for ever.
        logger.exception("the end of this worker could not be reported")
    finally:
        logger.error("%s", error, extra={"event": "failed", "exit_code": error.exit_code})
        end_process(error.exit_code)
