"""A task of a standing fleet: starts its process, adopts one that an earlier supervisor started, and restarts it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from psfleet import errors
from psfleet.errors import PERMANENT_CODES, SIGNAL_BASE
from psfleet.platforms.standing.state import FAILED, RESTARTING, RUNNING, TaskState
from psfleet.processes import fork_client
from psfleet.processes.child import MODULES, PRELOADED
from psfleet.processes.command import Command, Process
from psfleet.processes.identity import identity, send_signal
from psfleet.service import process_environment, settings
from psfleet.service.logs import last_failure, tail

logger = logging.getLogger("psfleet.launch")

FIRST_PAUSE_SECS, MAX_PAUSE_SECS = 0.5, 30.0
"""Pause before a restart: doubled with each process that has not lived for `STABLE_SECS`."""
STABLE_SECS = 60.0
ADOPTED = "it ended under an earlier supervisor"
"""Cause of an end whose exit code is not known: only the parent of a process gets it."""


class StandingTask:
    """One task; all its methods are called by the supervisor's thread.

    Args of the constructor:
        state: Recorded state, which this object changes; its process is adopted if it still runs.
        environment: Variables of the process.
        log: The file to which the process prints; a restarted one appends to it.
    """

    def __init__(self, state: TaskState, environment: Mapping[str, str], log: Path) -> None:
        self.state = state
        self._environment = environment
        self._log = log
        self._process: Process | None = None
        self._num_short = 0
        self._due = 0.0
        if state.pid and not state.is_alive() and state.state == RUNNING:
            self._end(ADOPTED)

    def check(self, now: float) -> bool:
        """Starts the process, or starts it again once it is due; returns whether the state has changed.

        Args:
            now: Monotonic time in seconds.
        """
        if self.state.state == RUNNING:
            if self._runs():
                return False
            self._take_end(now)
            return True
        if self.state.state == FAILED or now < self._due:
            return False
        try:
            self._start()
        except OSError as error:
            # A full disk, or too many processes: the supervisor continues.
            self.state.cause = f"it cannot be started: {error}"
            self._due = now + MAX_PAUSE_SECS
            logger.warning("%s: %s; trying again in %g s", self.state.name, self.state.cause, MAX_PAUSE_SECS)
        return True

    def signal(self, number: int) -> None:
        """Sends a signal, if its process still runs."""
        if self._process is not None:
            self._process.send_signal(number)
        else:
            send_signal(self.state.pid, self.state.identity, number)

    def has_ended(self) -> bool:
        """Whether no process of it runs."""
        return not self._runs()

    def _runs(self) -> bool:
        if self._process is None:
            return self.state.is_alive()
        if self._process.poll() is not None:
            return False
        if not self.state.identity and self._process.pid:
            # A fork server says later which process it has forked.
            self.state.pid = self._process.pid
            self.state.identity = identity(self._process.pid)
        return True

    def _start(self) -> None:
        state = self.state
        self._log.touch()
        environment = process_environment.for_child(
            {**self._environment, settings.PARENT: "0", settings.CAUSE: state.cause}
        )
        command = Command(MODULES[state.role], state.name, environment, self._log)
        self._process = fork_client.start(command, PRELOADED)
        state.restarts += bool(state.cause)
        state.state = RUNNING
        state.started = time.time()
        state.pid = self._process.pid
        state.identity = identity(state.pid) if state.pid else ""
        logger.info("%s starts as process %d%s", state.name, state.pid, f": {state.cause}" if state.cause else "")

    def _take_end(self, now: float) -> None:
        """Records why the process ended, and when it is due again."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            self._end(ADOPTED)
        else:
            code = SIGNAL_BASE - code if code < 0 else code
            lines: list[str] = []
            with suppress(OSError):
                lines = tail(self._log)
            last = last_failure(lines, code) if code < SIGNAL_BASE else None
            self._end(f"{last['message']} (exit code {code})" if last else errors.cause_of_end(code) or "exit code 0")
        if code in PERMANENT_CODES:
            self.state.state = FAILED
            logger.error("%s failed and is not started again: %s", self.state.name, self.state.cause)
            return
        has_lived = time.time() - self.state.started >= STABLE_SECS
        self._num_short = 0 if has_lived else self._num_short + 1
        pause_secs = min(MAX_PAUSE_SECS, FIRST_PAUSE_SECS * 2 ** max(0, self._num_short - 1))
        self._due = now + pause_secs
        logger.warning("%s ended, starts again in %g s: %s", self.state.name, pause_secs, self.state.cause)

    def _end(self, cause: str) -> None:
        self._process = None
        self.state.state = RESTARTING
        self.state.cause = cause
        self.state.pid, self.state.identity = 0, ""
