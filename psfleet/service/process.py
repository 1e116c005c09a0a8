"""Main function of the service processes: settings, logs, signals, one call, and the exit code."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from psfleet import errors
from psfleet.errors import BadJobError, ProgramError, PsfleetError, StoppedError
from psfleet.service.exit_records import ExitRecord
from psfleet.service.logs import log_json
from psfleet.service.settings import Settings, read

logger = logging.getLogger("psfleet")

TERMINATION_LOG = Path("/dev/termination-log")
"""Default `terminationMessagePath` of a Kubernetes container; the file does not exist elsewhere."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PR_SET_PDEATHSIG = 1
"""prctl(2): sets the signal that this process receives when its parent dies."""


class Stop:
    """The first SIGTERM or SIGINT that this process received, and its meaning (see `Settings.leaves_on_sigterm`).

    Python runs signal handlers between two bytecode instructions of the main thread, which can be inside TensorFlow for
    a minute. Therefore a separate thread reads the signal from the wake-up file descriptor.

    Attributes:
        event: Set once a signal was received.
        signal_number: Number of that signal; 0: none.
        leaves_on_sigterm: As in `Settings`.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal_number = 0
        self.leaves_on_sigterm = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        for number in STOP_SIGNALS:
            signal.signal(number, _ignore_in_main_thread)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

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

    def _listen(self) -> None:
        # The descriptor gets the number of every signal that has a Python handler, a training program's own included.
        number = self._reader.recv(1)[0]
        while number not in STOP_SIGNALS:
            number = self._reader.recv(1)[0]
        self.signal_number = number
        self.event.set()


Service = Callable[[Settings, Stop], int]


def run_service(role: str, load: Callable[[], Service]) -> None:
    """Runs a service process, from its settings to its exit code; never returns.

    The last log line of a failed process has `event: failed`, the exit code, and the traceback of the training program.
    The process ends with `os._exit`, because the shutdown of TensorFlow can block after a fatal error.

    Args:
        role: ps or worker.
        load: Imports the service, and thereby TensorFlow; called after signals are handled and the exit record is read.
    """
    faulthandler.enable()
    log_json(role=role)
    stop = Stop()
    code, message = errors.BUG, ""
    record = ExitRecord(None)
    try:
        settings = read()
        stop.leaves_on_sigterm = settings.leaves_on_sigterm
        log_json(run=settings.run, role=role, index=settings.index)
        die_with(settings.parent_pid)
        record = ExitRecord(settings.records)
        settings = replace(settings, cause=record.begin() or settings.cause)
        code = load()(settings, stop)
    except PsfleetError as error:
        code, message = error.exit_code, str(error)
        details = error.details if isinstance(error, ProgramError) else ""
        extra = {"event": "failed", "exit_code": code, "details": details}
        logger.log(logging.INFO if isinstance(error, StoppedError) else logging.ERROR, "%s", error, extra=extra)
    except Exception as error:
        message = f"a bug in psfleet: {type(error).__name__}: {error}"
        extra = {"event": "failed", "exit_code": code, "details": traceback.format_exc()}
        logger.critical("%s", message, extra=extra)
    finally:
        record.end(code, message)
        _write_termination_message(message)
        try:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Also if the log is on a full disk.
            os._exit(code)


def _ignore_in_main_thread(number: int, frame: object) -> None:
    """Replaces Python's default handlers, which would interrupt the main thread."""


def _write_termination_message(message: str) -> None:
    """Writes the termination message; without one, Kubernetes uses the end of the log (`FallbackToLogsOnError`)."""
    if message and TERMINATION_LOG.exists():
        with suppress(OSError):
            TERMINATION_LOG.write_text(message + "\n")


def die_with(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent dies.

    Args:
        parent_pid: Of the launcher, or of its fork server; 0: this process has no such parent.

    Raises:
        BadJobError: The parent died before.
    """
    if not parent_pid or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise BadJobError(f"the launcher with process id {parent_pid} is gone")
