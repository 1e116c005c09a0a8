"""The platform of `psfleet train`: one fleet, whose members are processes of this machine."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from psfleet import errors
from psfleet.addresses import Address, num_own_ps, ps_addresses
from psfleet.errors import DONE, LOST_PEERS, PERMANENT_CODES, DeadlineError
from psfleet.job.job import Job
from psfleet.launch.platform import Member, may_restart
from psfleet.platforms.local.control_file import ControlFile
from psfleet.platforms.local.growing_log import GrowingLog
from psfleet.polling import wait_until
from psfleet.processes.child import Task
from psfleet.processes.ports import free_addresses
from psfleet.report.attempts import newest_attempt
from psfleet.run_folder import RunFolder
from psfleet.service import settings
from psfleet.service.cpu import num_cores, threads_each

LEAVE_SECS = 10.0
"""How long the other processes may take to end after the chief."""
LOADERS_SECS = 1.0
"""How long loaders may take to end after all others; a frozen one has not heard of the end."""
START_STOP_SECS = 1.0
"""How long processes may take to end if the run is stopped before the first step: the chief may be in TensorFlow."""
POLL_SECS = 0.1


class Local:
    """A `WatchedPlatform` for the one fleet that a launcher starts itself.

    Args of the constructor:
        signals: Numbers of the signals that this process has received. The first one asks the chief to save and stop,
            the second one ends all processes at once.
        certificates: Of the standing fleet whose ps the run has, with a folder for each role; None: it has no TLS.

    Attributes:
        run: The run's id.
    """

    noun = "process"
    where = "is among the processes of this launcher"
    look_secs = POLL_SECS
    restart_secs = 0.5
    settle_secs = 0.0
    restarts_stopped = False

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        program_folder: Path,
        signals: list[int],
        certificates: Path | None = None,
    ) -> None:
        self.run = f"{job.name}-{secrets.token_hex(4)}"
        self._job = job
        self._folder = folder
        self._signals = signals
        self._certificates = certificates
        self._has_passed_signal = False
        # Whether `_end_after_chief` has found the chief's end.
        self._has_released_others = False
        # Whether `stop` has ended the chief.
        self._is_stopped = False
        # When all processes that still run are killed (monotonic, in seconds); None: no end is due.
        self._deadline: float | None = None
        self._started: dict[str, float] = {}
        self._tasks = self._plan(program_folder)
        self._chief = next(task for task in self._tasks if task.role == "worker")
        # Set when no followed log grows any more.
        self._is_closed = threading.Event()

    def start(self) -> None:
        """Starts all processes."""
        chief = Address.parse(self._chief.environment[settings.ADDRESS]).control
        tls = "" if self._certificates is None else str(self._certificates / "client")
        ControlFile(self.run, os.getpid(), chief, tls).write(self._folder.path)
        for task in self._tasks:
            self._start(task, "")

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `Platform`. Also passes signals on, and kills the processes that outlive the chief for too long."""
        self._pass_signals()
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._kill()
        # Last, because it ends the chief's log.
        self._end_after_chief()
        return [self._member(task) for task in self._tasks]

    def restart(self, member: Member) -> None:
        """See `Platform`."""
        task = next(task for task in self._tasks if task.name == member.name)
        self._start(task, task.cause_of_end())

    def end_restarts(self, members: Sequence[Member]) -> None:
        """See `Platform`. Only psfleet itself restarts local processes."""

    def stop(self, chief: Member, timeout_secs: float) -> None:
        """See `Platform`. A chief that does not end in time is killed, as a container would be."""
        self._chief.signal(signal.SIGTERM)

        def has_ended() -> bool:
            return self._chief.exit_code() is not None or len(self._signals) > 1

        with suppress(DeadlineError):
            wait_until(has_ended, timeout_secs, "the chief to end")
        self._is_stopped = True
        self._chief.kill()
        self._end_after_chief()

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`. A log is followed over restarts until the chief has ended; incomplete lines are held back."""
        task = next(task for task in self._tasks if task.name == member.name)
        log = GrowingLog(task.log)
        while True:
            is_last = not follow or self._is_closed.is_set()
            yield from log.read(is_last)
            if is_last:
                return
            self._is_closed.wait(POLL_SECS)

    def remove(self, name: str, results: bool) -> bool:
        """See `Platform`. Ends all processes at once; results stay in the run folder."""
        self._kill()
        self._is_closed.set()
        return True

    def _kill(self) -> None:
        """Ends all processes at once."""
        # All are signalled before one is waited for: a fork server that dies in that wait would start those that are
        # yet to be forked.
        for task in self._tasks:
            task.signal(signal.SIGKILL)
        for task in self._tasks:
            task.kill()

    def _plan(self, program_folder: Path) -> list[Task]:
        job = self._job
        sizes = {"ps": num_own_ps(job), "loader": job.input.num_loaders, "worker": job.fleet.processes}
        roles = [(role, index) for role, size in sizes.items() for index in range(size)]
        places = dict(zip(roles, free_addresses(len(roles)), strict=True))
        by_role = {name: [at for (role, _), at in places.items() if role == name] for name in sizes}
        ps = ps_addresses(job, by_role["ps"], by_role["worker"])
        common = {
            settings.JOB: str(self._folder.job),
            settings.PROGRAM_FOLDER: str(program_folder),
            settings.RUN: self.run,
            settings.OUT: str(self._folder.path),
            settings.PS: ",".join(address.data for address in ps),
            settings.LOADERS: ",".join(at.data for at in by_role["loader"]),
            # A port in the launcher's own environment cannot be that of all its processes.
            settings.METRICS_PORT: "0",
            # The launcher's own environment may be that of a pod, but its processes are not pods.
            settings.ON_SIGTERM: "",
            # Nor are they those of a standing fleet, whose client the launcher may be.
            settings.FLEET: "",
            # The launcher reads the logs.
            settings.LOG: "",
            settings.START: self.run,
            settings.THREADS: str(threads_each(num_cores(), job.fleet.processes)),
            settings.LAUNCHED: str(int(time.time() * 1000)),
        }
        tasks = []
        for (role, index), at in places.items():
            tls = "" if self._certificates is None else str(self._certificates / role)
            own = {settings.INDEX: str(index), settings.ADDRESS: at.data, settings.TLS: tls}
            tasks.append(Task(role, index, {**common, **own}, self._folder.log(role, index)))
        return tasks

    def _start(self, task: Task, cause: str) -> None:
        task.start(cause=cause)
        self._started[task.name] = time.time()

    def _member(self, task: Task) -> Member:
        code = task.exit_code()
        return Member(
            fleet=self._job.name,
            role="chief" if task is self._chief else task.role,
            index=task.index,
            name=task.name,
            state="running" if code is None else f"exited ({code})",
            started=self._started[task.name],
            exit_code=code,
            cause=task.cause_of_end() if code not in (None, DONE) else "",
            restarts=task.restarts,
            is_over=code is not None,
            awaits_restart=code is not None and not self._is_final(task, code),
        )

    def _is_final(self, task: Task, code: int) -> bool:
        """Whether a process that has ended is not restarted, however many restarts are left."""
        if code == DONE or (task is self._chief and self._is_stopped):
            return True
        if self._deadline is not None:
            # A chief that was asked to stop needs the others for its last step: those that were killed are restarted.
            return not (self._signals and task.was_killed() and self._chief.exit_code() is None)
        if task is self._chief and newest_attempt(self._folder.path).get("run") == self.run:
            return True
        if task.was_killed() or code == LOST_PEERS:
            return False
        return code in PERMANENT_CODES or code == errors.BUG or task is self._chief

    def _end_within(self, secs: float) -> None:
        """Brings the deadline forward to `secs` from now; an earlier one stays."""
        latest = time.monotonic() + secs
        self._deadline = latest if self._deadline is None else min(self._deadline, latest)

    def _pass_signals(self) -> None:
        """Passes the first signal to the chief; at the second one, all processes are due to be killed."""
        if len(self._signals) > 1:
            self._deadline = 0.0
        elif self._signals and not self._has_passed_signal and not self._has_released_others:
            self._has_passed_signal = True
            self._chief.signal(self._signals[0])
            self._end_within(self._stop_secs())

    def _stop_secs(self) -> float:
        """How long a stop may take: a chief that has not begun has nothing to save, nor has one without a step."""
        if not self._chief.has_begun():
            return 0.0
        stop_secs = self._job.deadlines.stop_secs
        return stop_secs if self._chief.has_trained() else min(START_STOP_SECS, stop_secs)

    def _end_after_chief(self) -> None:
        """Once the chief is over, ends the followed logs; if it failed, sends SIGTERM to the other processes.

        A chief that is done has sent its outcome to all ps, by which the others end.
        """
        chief = self._member(self._chief)
        if not self._has_released_others and chief.is_over and not may_restart(chief, self._job):
            self._has_released_others = True
            self._is_closed.set()
            self._end_within(LEAVE_SECS)
            if chief.exit_code != DONE:
                for task in self._tasks:
                    task.signal(signal.SIGTERM)
        has_others = any(task.exit_code() is None for task in self._tasks if task.role != "loader")
        if self._has_released_others and not has_others:
            self._end_within(LOADERS_SECS)
