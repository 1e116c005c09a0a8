"""A deadline for what a training program does on the main thread while it is loaded and built.

Keras keeps state for each thread, so that a program cannot be built on a thread of its own, as its data sets are made;
and nothing interrupts code that waits, for example for a download. A timer ends the process instead.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from psfleet.errors import DataStallError, PsfleetError, StoppedError
from psfleet.service.process import Stop, log_end

logger = logging.getLogger("psfleet.worker")

DEADLINES = 3
"""Multiples of `deadlines.first_secs`: building waits for `train`, `evaluate` and a first batch, with one for each."""
STOP_SECS = 5.0
"""Time for a program to return once a signal came; what other workers have trained is saved without it."""

Report = Callable[[DataStallError | StoppedError], object]


@contextmanager
def building(program: str, first_secs: float, report: Report, stop: Stop | None = None) -> Iterator[None]:
    """Context manager for a block that loads and builds a program; ends the process with 75 if it takes too long.

    Args:
        program: As in the job file.
        first_secs: Of the job's deadlines.
        report: Ends the run if the fleet cannot train without this worker; called before the process ends.
        stop: Ends the process, too, with 128 + the signal; None: it does not.
    """
    returned, ending, secs = threading.Event(), threading.Lock(), DEADLINES * first_secs

    def end(error: DataStallError | StoppedError) -> None:
        with ending:
            if not returned.is_set():
                _end(error, report)

    def end_on_signal(stop: Stop) -> None:
        stop.event.wait()
        if not returned.wait(STOP_SECS):
            end(stop.error())

    if stop is not None:
        threading.Thread(target=end_on_signal, args=(stop,), name="build-stop", daemon=True).start()
    timer = threading.Timer(secs, end, [DataStallError(f"program {program!r} to be loaded and built", secs)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        # A program that returns too late waits here for the end of the process.
        with ending:
            returned.set()
        timer.cancel()


def _end(error: DataStallError | StoppedError, report: Report) -> None:
    """Reports, and ends the process."""
    try:
        with suppress(PsfleetError):
            report(error)
    except Exception as failure:
        # Any error: without this thread the process would wait for ever.
        text = "the end of this worker could not be reported"
        log_end(partial(logger.error, text, exc_info=failure), with_stacks=False)
    finally:
        level = logging.INFO if isinstance(error, StoppedError) else logging.ERROR
        log = partial(logger.log, level, "%s", error, extra={"event": "failed", "exit_code": error.exit_code})
        log_end(log, with_stacks=isinstance(error, DataStallError))
        os._exit(error.exit_code)
