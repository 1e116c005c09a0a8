"""A task of a local fleet: starts, restarts and ends its process, and reads from its log why the process ended."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.processes import fork_client
from psfleet.processes.command import Command, Process
from psfleet.service import process_environment, settings
from psfleet.service.logs import is_event, last_failure, parse_line, tail

SAVED_EVENTS = frozenset({"progress", "checkpoint", "verified", "evaluation"})
"""Events of the chief's log after which a run that is stopped has something to save or to finish."""
QUIET_SECS = 60.0
"""For which a process logs nothing at most when it begins."""
TRIAL_WORKER = "trial worker"
"""Role of the workers of a study."""
PREDICTION_WORKER = "prediction worker"
"""Role of the workers of `psfleet predict`."""
FRONT, MEMBER = "front", "member"
"""Roles of the processes of a service."""
MODULES = {
    "ps": "ps_service",
    "worker": "worker_service",
    "loader": "worker_service.loader",
    TRIAL_WORKER: "worker_service.trial",
    PREDICTION_WORKER: "worker_service.predictions",
    FRONT: "worker_service.front",
    MEMBER: "worker_service.member",
}
PRELOADED = ("ps_service", "worker_service")
"""Packages that a fork server imports before it forks."""


@dataclass
class Task:
    """A task of the fleet, ps 0 or worker 1, and its present or last process.

    Attributes:
        role: A key of `MODULES`.
        index: Within the role.
        environment: Variables of the process, in addition to the launcher's own environment.
        log: The file to which the process prints; a restarted one appends to it.
        restarts: Number of restarts.
        process: The present or last process; None before the first.
    """

    role: str
    index: int
    environment: Mapping[str, str]
    log: Path
    restarts: int = 0
    process: Process | None = field(default=None, repr=False)
    _cause: str = field(default="", init=False, repr=False)
    _log_began: os.stat_result | None = field(default=None, init=False, repr=False)
    _began_at: float = field(default=math.inf, init=False, repr=False)

    @property
    def name(self) -> str:
        """The name in messages: `ps 0`."""
        return f"{self.role} {self.index}"

    def start(self, cause: str = "") -> None:
        """Starts the process; a restart has a cause."""
        self.restarts += bool(cause)
        self._cause = ""
        variables = {**self.environment, settings.PARENT: str(os.getpid()), settings.CAUSE: cause}
        # A fork server creates the log later than the reader that follows it may open it.
        self.log.touch()
        self._log_began, self._began_at = self.log.stat(), time.monotonic()
        environment = process_environment.for_child(variables)
        if settings.TF_CONFIG not in self.environment:
            # That of another tool, in whose container this one runs.
            environment.pop(settings.TF_CONFIG, None)
        command = Command(MODULES[self.role], self.name, environment, self.log)
        self.process = fork_client.start(command, PRELOADED)

    def exit_code(self) -> int | None:
        """Exit code of the process, 128 + n if signal n killed it; None while it runs."""
        assert self.process is not None, "start() comes first"
        code = self.process.poll()
        return errors.SIGNAL_BASE - code if code is not None and code < 0 else code

    def was_killed(self) -> bool:
        """Whether a signal ended the process."""
        assert self.process is not None, "start() comes first"
        return (self.process.returncode or 0) < 0

    def signal(self, number: int) -> None:
        """Sends a signal, if the process still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def cause_of_end(self) -> str:
        """Why the process ended, in one line; its log is read once, although a launcher asks at each look."""
        code = self.exit_code()
        if code is None:
            return "it runs"
        if not self._cause:
            last = None if self.was_killed() else self.failure()
            self._cause = f"{last['message']} (exit code {code})" if last else errors.cause_of_end(code)
        return self._cause

    def has_begun(self) -> bool:
        """Whether a process of this task has logged anything; before, a fork server may still import TensorFlow.

        It is taken for granted if the log is not the one that the process writes.
        """
        if not self._has_whole_log() or any(True for _ in self._entries()):
            return True
        # Someone has emptied it.
        return time.monotonic() - self._began_at > QUIET_SECS

    def has_trained(self) -> bool:
        """Whether the chief has logged that it or the fleet has made a step; for the chief's task.

        The fleet's step alone does not say so: it is 0 while the ps have no shard, and then that of the checkpoint. It
        is taken for granted if the log is not the one that the process writes.
        """
        if not self._has_whole_log():
            return True
        steps: set[int] = set()
        restored: list[int] = []
        for entry in self._entries():
            if entry.get("event") in SAVED_EVENTS:
                return True
            if is_event(entry, "fleet", "step"):
                steps.add(entry["step"])
            elif is_event(entry, "starting", "step"):
                restored.append(entry["step"])
        return max(steps, default=0) > max(restored) if restored else len(steps) > 1

    def _has_whole_log(self) -> bool:
        """Whether the log was neither deleted, nor renamed, nor cut since the process was started."""
        began = self._log_began
        try:
            now = self.log.stat()
        except OSError:
            return False
        return began is None or (os.path.samestat(began, now) and now.st_size >= began.st_size)

    def _entries(self) -> Iterator[dict[str, Any]]:
        """The entries of the log, one at a time: the log of a long run does not fit into memory."""
        with self.log.open("rb") as lines:
            yield from (entry for line in lines if (entry := parse_line(line)) is not None)

    def failure(self) -> dict[str, Any] | None:
        """The last thing that a failed process logged: `message`, `exit_code`, `details`; None without a log, too."""
        try:
            lines = tail(self.log)
        except OSError:
            return None
        return last_failure(lines, self.exit_code())
