"""The process of a driver's worker in a container, and its parent, which sees how it ends and whether it is frozen.

A training program can end its process by `os._exit` with any exit code, from which the platform would conclude that
nothing is left to do, and the driver would learn nothing. A frozen process does nothing at all.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from psfleet import errors
from psfleet.driver.silence import Silence, file_time
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job.sections import Deadlines
from psfleet.service import settings
from psfleet.service.exit_records import last_code
from psfleet.service.logs import log_service
from psfleet.service.parent import die_with
from psfleet.service.process import STOP_SIGNALS
from psfleet.service.settings import Settings

logger = logging.getLogger("psfleet.worker")

LOOK_SECS = 0.5
"""Interval in which the parent looks for signs of life."""
SIGNALS = {signal.SIGCHLD, *STOP_SIGNALS}


@dataclass(frozen=True)
class End:
    """The end of a process.

    Attributes:
        code: Exit code, 128 + n after signal n.
        silent_secs: How long it gave no sign of life, for which it was killed; 0: it was not.
        is_recorded: Whether psfleet has ended it.
        was_stopped: Whether it was asked to end by a signal.
    """

    code: int
    silent_secs: float
    is_recorded: bool
    was_stopped: bool

    @property
    def is_by_program(self) -> bool:
        """Whether the training program ended it; see `psfleet.driver.watcher.End`."""
        return not self.is_recorded and self.code < errors.SIGNAL_BASE and self.code != errors.LOST_PEERS

    @property
    def exit_code(self) -> int:
        """The one with which the container ends: its platform starts it again after an end that nobody wanted."""
        return errors.LOST_PEERS if self.silent_secs or self.is_by_program else self.code


def watched() -> None:
    """Returns in a child of this process, which becomes the worker; in this process if it has no driver to call.

    This process ends with the child. It tells the driver of an end of which the child has not told it, and starts
    another child if the program has ended that.
    """
    try:
        own = settings.read()
        if own.driver is None:
            return
        die_with(own.parent_pid)
    except PsfleetError:
        # The service reports it.
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    folder = Path(tempfile.mkdtemp(prefix="psfleet-"))
    records = own.records or folder
    while True:
        life = folder / secrets.token_hex(8)
        if not (child := _fork(own, life, records)):
            return
        end = _followed(own, child, life, records)
        has_begun = life.exists()
        if has_begun and not end.is_recorded:
            _in_child(partial(_tell_driver, own, life.name, end))
        if not has_begun or not end.is_by_program or end.was_stopped:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(end.exit_code)


def _fork(own: Settings, life: Path, records: Path) -> int:
    """The process id of a child, which leads a process group; 0 in the child, which ends with its parent."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.environ |= {settings.LIFE: str(life), settings.RECORDS: str(records)}
        if own.parent_pid:
            os.environ[settings.PARENT] = str(parent)
        die_with(parent)
    return child


def _followed(own: Settings, child: int, life: Path, records: Path) -> End:
    """Waits for the end of a child, to which it passes signals on, and which it kills if that is frozen.

    The processes that the program has started end with the child.
    """
    deadlines = own.job.deadlines if own.job is not None else Deadlines()
    silence, silent_secs, was_stopped = Silence(file_time(life), deadlines), 0.0, False
    while True:
        # On a full disk the file gets older, and the kubelet ends the pod.
        with suppress(OSError):
            if own.life is not None:
                own.life.touch()
        received = signal.sigtimedwait(SIGNALS, LOOK_SECS)
        if received is not None and received.si_signo in STOP_SIGNALS:
            was_stopped = True
            os.kill(child, received.si_signo)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # Its number stays that of its group until it is reaped. It may have ended before it had a group.
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            code = errors.SIGNAL_BASE - code if code < 0 else code
            return End(code, silent_secs, last_code(records) is not None, was_stopped)
        if not silent_secs and silence.is_too_long():
            silent_secs = silence.limit_secs
            os.kill(child, signal.SIGKILL)


def _in_child(call: Callable[[], None]) -> None:
    """Calls a function in a process of its own: one that has used gRPC must not fork."""
    child = os.fork()
    if child == 0:
        _call_and_end(call)
    os.waitpid(child, 0)


def _call_and_end(call: Callable[[], None]) -> NoReturn:
    try:
        with suppress(PsfleetError):
            call()
    finally:
        os._exit(0)


def _tell_driver(own: Settings, process: str, end: End) -> None:
    """Tells the driver how a process has ended, unless the driver has given it up; logs it, too."""
    from psfleet.control.credentials import read_identity
    from psfleet.control.driver_client import BEAT_SECS, DriverClient

    assert own.driver is not None, "a process without a driver has no parent of this kind"
    log_service(own.logs_text, run=own.run, role="worker", index=own.index)
    silence = LostPeerError(f"no sign of life for {end.silent_secs:g} s") if end.silent_secs else None
    cause = str(silence or errors.cause_of_end(end.code) or f"exit code {end.code}")
    by = " by the program" if end.is_by_program else ""
    logger.error("the process was ended%s: %s", by, cause, extra={"event": "ended", "exit_code": end.code})
    client = DriverClient(own.driver, own.run, own.index, BEAT_SECS, read_identity(own.tls, "worker"), process)
    if silence is None:
        client.end(end.code)
    else:
        client.fail(silence)
