"""The processes of a service: a front and its members, started again after they died or froze."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from psfleet import errors
from psfleet.driver.silence import Silence, file_time
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job.sections import Deadlines
from psfleet.job.service_access import FrontOptions, Mode, ServiceAccess, life_file
from psfleet.processes.child import FRONT, MEMBER, Task
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.service.cpu import num_cores, threads_each
from psfleet.serving.sources import Sources

SILENT_SECS = 10.0
"""A process that gives no sign of life for so long is killed and started again; each gives one a second."""
START_SECS = 180.0
"""The same for the first sign of a process, which imports TensorFlow before."""
MAX_DEATHS = 5
"""How often a process may die before the service has been ready."""
LASTING_SECS = 60.0
"""A process that has run for so long is started again at once."""
MAX_DELAY_SECS = 30.0
"""The longest wait before a process that dies again and again is started."""


@dataclass
class _Watched:
    """A process; `starts_at` is when it is due to start again, None while it runs."""

    task: Task
    silence: Silence
    started: float
    deaths: int = 0
    starts_at: float | None = None


class ServiceProcesses:
    """The processes; used by one thread, and closed at the end.

    Args of the constructor:
        sources: The members, and the name of the model.
        mode: See `ServiceAccess`.
        options: Of the front.
        metrics_port: Of the front; 0: none.
        folder: Has the logs.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        sources: Sources,
        mode: Mode,
        options: FrontOptions,
        metrics_port: int,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.was_ready = False
        front, *members = free_addresses(1 + len(sources.members) * sources.replicas)
        threads = threads_each(num_cores(), len(members))
        deadlines = Deadlines(start_secs=START_SECS, step_secs=SILENT_SECS)
        access = ServiceAccess(
            name=sources.name,
            front=front.data,
            num_models=len(sources.members),
            replicas=sources.replicas,
            mode=mode,
        )
        parts = [(FRONT, 0, front, access.model_copy(update={"options": options}))]
        for index, address in enumerate(members):
            source = sources.members[index % len(sources.members)]
            parts.append((MEMBER, index, address, access.model_copy(update={"member": source})))
        self._watched = []
        for role, index, address, own in parts:
            environment = {
                settings.SERVICE: own.model_dump_json(),
                settings.ADDRESS: address.data,
                settings.INDEX: str(index),
                settings.OUT: str(folder.absolute()),
                settings.THREADS: str(threads),
                settings.METRICS_PORT: str(metrics_port if role == FRONT else 0),
            }
            task = Task(role, index, environment, folder / "logs" / f"{role}-{index}.log")
            silence = Silence(file_time(life_file(folder, role, index)), deadlines, clock)
            self._watched.append(_Watched(task, silence, 0.0))

    @property
    def front(self) -> Task:
        """The task of the front."""
        return self._watched[0].task

    def start(self) -> None:
        """Starts all processes."""
        for watched in self._watched:
            self._start(watched, "")

    def revive(self) -> list[str]:
        """Starts processes again that have ended or give no sign of life; what happened, a line for each.

        Raises:
            PsfleetError: The front, or a member that has just started, failed in a way that would recur.
            LostPeerError: A process dies again and again, and the service has not been ready.
        """
        texts = []
        for watched in self._watched:
            task = watched.task
            if watched.starts_at is not None:
                if self._clock() >= watched.starts_at:
                    self._start(watched, task.cause_of_end() or "it ended")
            elif task.exit_code() is not None:
                texts.append(self._lose(watched, task.cause_of_end() or "it ended"))
            elif watched.silence.is_too_long():
                task.kill()
                texts.append(self._lose(watched, f"no sign of life for {watched.silence.limit_secs:g} s"))
        return texts

    def close(self) -> None:
        """Ends all processes at once."""
        for watched in self._watched:
            watched.task.kill()

    def _start(self, watched: _Watched, cause: str) -> None:
        watched.silence.restart()
        watched.starts_at, watched.started = None, self._clock()
        watched.task.start(cause)

    def _lose(self, watched: _Watched, cause: str) -> str:
        task, code = watched.task, watched.task.exit_code()
        if code in errors.PERMANENT_CODES and (task.role == FRONT or not task.restarts):
            error = PsfleetError(f"{task.name} failed: {cause}")
            error.exit_code = code
            raise error
        is_lasting = self._clock() - watched.started >= LASTING_SECS
        watched.deaths = 1 if is_lasting else watched.deaths + 1
        if watched.deaths > MAX_DEATHS and not self.was_ready:
            raise LostPeerError(f"{task.name} died {watched.deaths} times, and the service was never ready: {cause}")
        delay = 0.0 if watched.deaths == 1 else min(MAX_DELAY_SECS, 0.5 * 2.0 ** (watched.deaths - 2))
        watched.starts_at = self._clock() + delay
        return f"{task.name} died ({cause}) and is started again"
