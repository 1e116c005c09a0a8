"""Main function of the service processes: settings, logs, signals, one call, and the exit code."""

from __future__ import annotations

import faulthandler
import gc
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from psfleet import errors
from psfleet.errors import LostPeerError, PsfleetError, StoppedError
from psfleet.job.program_files import digest, job_files
from psfleet.polling import run_within
from psfleet.service.exit_records import ExitRecord
from psfleet.service.lasting_failure import wait_if_permanent
from psfleet.service.logs import log_service
from psfleet.service.parent import end_group_with
from psfleet.service.probes import ProbeRecord
from psfleet.service.settings import Settings, failure_file, logs_text, read
from psfleet.service.signals import SignalListener

logger = logging.getLogger("psfleet")

TERMINATION_LOG = Path("/dev/termination-log")
"""Default `terminationMessagePath` of a Kubernetes container; the file does not exist elsewhere."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG_SECS = 1.0
"""Time to log why a stuck process ends: the log can be on a disk that does not answer, or its lock be held."""
STANDARD_ERROR = 2
"""The descriptor: a program can replace `sys.stderr` by an object that has none."""


class Stop:
    """The first SIGTERM or SIGINT that this process received, and its meaning (see `Settings.leaves_on_sigterm`).

    Attributes:
        event: Set once a signal was received.
        signal_number: Number of that signal; 0: none.
        leaves_on_sigterm: As in `Settings`.
        start_secs: Timeout of the startup probe.
        probes: Answers to health probes until that signal.
        record: The exit record of this process.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal_number = 0
        self.leaves_on_sigterm = False
        self.start_secs = math.inf
        self.probes = ProbeRecord()
        self.record = ExitRecord(None)
        self._failed_secs = 0.0
        self.listener = SignalListener(STOP_SIGNALS, self._receive)

    def must_leave(self, index: int) -> bool:
        """Whether the worker with an index must exit now, while the run continues without it."""
        is_replaced = self.leaves_on_sigterm and self.signal_number == signal.SIGTERM
        return self.event.is_set() and (index != 0 or is_replaced)

    def must_save(self) -> bool:
        """Whether the chief must write a checkpoint and end the run."""
        return self.event.is_set() and not self.must_leave(0)

    def error(self) -> StoppedError:
        """The error for a process that received a signal."""
        return StoppedError(self.signal_number)

    def end_process(self, code: int) -> None:
        """Ends this process from any of its threads, and records the exit code, so that a restart ends with it, too."""
        self.record.end(code, f"it has ended with exit code {code}")
        os._exit(code)

    def cause_of(self, error: PsfleetError) -> PsfleetError:
        """Returns the error with which a process ends: SIGTERM is a failure if the platform sent it to a stuck process.

        The exit code of a process that was stopped is not counted as a restart (see `manifests.kubernetes.render`).
        """
        if not isinstance(error, StoppedError) or not self._failed_secs:
            return error
        secs = f"{self._failed_secs:.0f} s"
        return LostPeerError(f"{error}, after {secs} in which no health probe was answered: its probes failed")

    def _receive(self, number: int) -> None:
        if number in STOP_SIGNALS and not self.event.is_set():
            self.signal_number = number
            if self.leaves_on_sigterm and number == signal.SIGTERM:
                self._failed_secs = self.probes.failed_secs(self.start_secs)
            self.event.set()


Service = Callable[[Settings, Stop], int]


def run_service(role: str, load: Callable[[], Service]) -> None:
    """Runs a service process, from its settings to its exit code; never returns.

    The last log line of a failed process has `event: failed`, the exit code, and the traceback of the training program.
    The process, unless it waits (see `lasting_failure`), ends with `os._exit`, because the shutdown of TensorFlow can
    block after a fatal error.

    Args:
        role: ps or worker.
        load: Imports the service, and thereby TensorFlow; called after signals are handled and the exit record is read.
    """
    faulthandler.enable()
    log_service(logs_text(), role=role)
    stop = Stop()
    code, message = errors.BUG, ""
    record = ExitRecord(None)
    try:
        settings = read()
        stop.leaves_on_sigterm = settings.leaves_on_sigterm
        if settings.job is not None:
            stop.start_secs = settings.job.deadlines.start_secs
        log_service(settings.logs_text, run=settings.run, role=role, index=settings.index)
        end_group_with(settings.parent_pid)
        record = stop.record = ExitRecord(settings.records, program=program_digest(settings))
        settings = replace(settings, cause=record.begin() or settings.cause)
        code = _loaded(load)(settings, stop)
    except Exception as raised:
        code, message = log_failure(logger, stop.cause_of(raised) if isinstance(raised, PsfleetError) else raised)
    finally:
        record.end(code, message)
        _write_termination_message(message)
        try:
            wait_if_permanent(failure_file(), code, message, stop.event)
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Also if the log is on a full disk.
            os._exit(code)


def log_failure(logs: logging.Logger, error: Exception) -> tuple[int, str]:
    """Logs why a service fails, in its last line; returns its exit code and the message. Called by the handler."""
    if isinstance(error, PsfleetError):
        code, message, details = error.exit_code, str(error), error.details
        level = logging.INFO if isinstance(error, StoppedError) else logging.ERROR
    else:
        code, message = errors.BUG, f"a bug in psfleet: {type(error).__name__}: {error}"
        level, details = logging.CRITICAL, traceback.format_exc()
    logs.log(level, "%s", message, extra={"event": "failed", "exit_code": code, "details": details})
    return code, message


def log_end(log: Callable[[], object], *, with_stacks: bool = True) -> None:
    """Logs why this process, which is stuck, ends; takes at most `LOG_SECS`, and raises nothing.

    Args:
        log: Logs it, on a thread of its own.
        with_stacks: Whether the stacks of all threads are written to the standard error before.
    """

    def write() -> None:
        if with_stacks:
            with suppress(OSError, RuntimeError), _memory_file() as stacks:
                # faulthandler holds the interpreter's lock while it writes, for ever to a full pipe.
                faulthandler.dump_traceback(stacks)
                stacks.seek(0)
                os.write(STANDARD_ERROR, stacks.read())
        log()

    # Also SystemExit, of a handler of the log.
    with suppress(BaseException):
        run_within(LOG_SECS, write)


def _memory_file() -> IO[bytes]:
    """A file that is on no disk where the system has such files."""
    return os.fdopen(os.memfd_create("stacks"), "w+b") if sys.platform == "linux" else tempfile.TemporaryFile()


def program_digest(settings: Settings) -> str:
    """The digest of the training program for the exit record; empty if there is no record, or no job."""
    if settings.job is None or settings.records is None:
        return ""
    return digest(job_files(settings.job, settings.program_folder))


def _loaded(load: Callable[[], Service]) -> Service:
    """Imports a service without garbage collection, which would take a sixth of the time.

    What was imported is exempt from later collections, too: the first one would look at all of it.
    """
    gc.disable()
    try:
        return load()
    finally:
        gc.freeze()
        gc.enable()


def _write_termination_message(message: str) -> None:
    """Writes the termination message; without one, Kubernetes uses the end of the log (`FallbackToLogsOnError`)."""
    if message and TERMINATION_LOG.exists():
        with suppress(OSError):
            TERMINATION_LOG.write_text(message + "\n")
