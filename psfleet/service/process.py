"""What every service process does alike: settings, logs, signals, one call, and the exit code at the end."""

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
from psfleet.service.exit_records import Records
from psfleet.service.logs import log_json
from psfleet.service.settings import Settings, read

logger = logging.getLogger("psfleet")

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads why a container ended; nowhere else is such a file."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent dies."""


class Stop:
    """Set by the first SIGTERM or SIGINT; holds its number, and knows what it asks for (see `Settings`).

    Python runs signal handlers between two instructions of the main thread, which may be inside TensorFlow for a
    minute: a thread of its own reads the signal from the wake-up descriptor instead.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal_number = 0
        self.leaves_on_sigterm = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave_it_to_the_thread)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def must_leave(self, index: int) -> bool:
        """Whether the worker of an index is to end at once, and to leave the run to the others."""
        is_replaced = self.leaves_on_sigterm and self.signal_number == signal.SIGTERM
        return self.event.is_set() and (index != 0 or is_replaced)

    def must_save(self) -> bool:
        """Whether the chief is to save what there is and end the run."""
        return self.event.is_set() and not self.must_leave(0)

    def error(self) -> StoppedError:
        """The error that ends a process which was asked to stop."""
        return StoppedError(self.signal_number)

    def _listen(self) -> None:
        self.signal_number = self._reader.recv(1)[0]
        self.event.set()


Service = Callable[[Settings, Stop], int]


def run_service(role: str, load: Callable[[], Service]) -> None:
    """Runs one service process from its settings to its exit code; never returns.

    The last log line of a process that fails has `event: failed`, the exit code, and a training program's traceback.
    The process ends by `os._exit`: closing TensorFlow can block after a fatal error, and nothing is left to do.

    Args:
        role: ps or worker.
        load: Imports the service, and TensorFlow with it, once signals are heeded and this process may start at all.
    """
    faulthandler.enable()
    log_json(role=role)
    stop = Stop()
    code, message = errors.BUG, ""
    records = Records(None)
    try:
        settings = read()
        stop.leaves_on_sigterm = settings.leaves_on_sigterm
        log_json(run=settings.run, role=role, index=settings.index)
        die_with(settings.parent_pid)
        records = Records(settings.records)
        settings = replace(settings, cause=records.begin() or settings.cause)
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
        records.end(code, message)
        _leave_word(message)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave_it_to_the_thread(number: int, frame: object) -> None:
    """Takes the place of Python's own handlers, which would end the main thread wherever it is."""


def _leave_word(message: str) -> None:
    """Tells Kubernetes why this process ends; one that has nothing to say leaves that to the end of its log."""
    if message and TERMINATION_LOG.exists():
        with suppress(OSError):
            TERMINATION_LOG.write_text(message + "\n")


def die_with(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent dies, however it dies.

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
