"""The workers of a study: started, given trials, and started again after they died."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.driver.processes import process_workers
from psfleet.driver.watcher import End, WatchedWorker, WorkerWatcher
from psfleet.driver.worker import Worker
from psfleet.errors import PsfleetError
from psfleet.job.trial_access import TrialAccess
from psfleet.processes.child import TRIAL_WORKER
from psfleet.service import settings
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy
from psfleet.sweep.study_file import Study

MAX_DEATHS = 4
"""How often in a row a worker may die without a finished trial: one that is lost is repeated twice."""


def access_to(study: Study, socket: str = "") -> TrialAccess:
    """What the workers of a study get; `socket` as in `TrialAccess`."""
    return TrialAccess(
        study=study.name, socket=socket, metric=study.objective.metric, prune_steps=study.prune.every_steps
    )


def processes(loaded: LoadedStudy, folder: Path, socket: str, number: int) -> AbstractContextManager[Sequence[Worker]]:
    """Context manager for workers that are processes of this machine.

    Args:
        folder: Of the study's results.
        socket: See `TrialAccess`.
        number: Of workers.
    """
    environment = {settings.TRIALS: access_to(loaded.study, socket).model_dump_json()}
    return process_workers(TRIAL_WORKER, number, environment, loaded.folder, folder)


class Workers:
    """The workers of a study; used by one thread, and closed at the end.

    Args of the constructor:
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        stored: StoredStudy,
        workers: Sequence[Worker],
        loaded: LoadedStudy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stored = stored
        self._watcher = WorkerWatcher(workers, loaded.deadlines, clock)
        # Numbers of the trials of workers that are not idle, by the worker's index.
        self._trials: dict[int, int] = {}

    @property
    def number(self) -> int:
        """Of workers."""
        return len(self._watcher.workers)

    def start(self) -> None:
        """Starts all processes."""
        for worker in self._watcher.workers:
            self._stored.assign(worker.index, None)
        self._watcher.start()

    def idle(self) -> list[WatchedWorker]:
        """The workers that can be given a trial."""
        return [each for each in self._watcher.workers if each.index not in self._trials and each.worker.is_there()]

    def assign(self, worker: WatchedWorker, trial: Any) -> None:
        """Gives an idle worker a trial."""
        self._trials[worker.index] = trial.number
        self._stored.assign(worker.index, trial)

    def release(self, finished: set[int]) -> None:
        """Makes the workers idle whose trials have finished."""
        for worker in self._watcher.workers:
            if self._trials.get(worker.index) in finished:
                del self._trials[worker.index]
                worker.deaths = 0

    def revive(self) -> list[str]:
        """Starts processes again that have ended or give no sign of life, and has their trials repeated.

        Returns:
            What happened, a line for each.

        Raises:
            LostPeerError: A worker dies again and again, or no worker was there for `deadlines.start_secs`.
            PsfleetError: A worker failed in a way that would recur.
        """
        return [self._revive(end) for end in self._watcher.ends()]

    def _revive(self, end: End) -> str:
        worker = end.watched
        trial = self._trials.get(worker.index)
        if trial is not None and end.is_by_program:
            return self._fail(worker, trial, f"the program ended {worker} with exit code {end.code}")
        if end.code in errors.PERMANENT_CODES:
            error = PsfleetError(f"{worker} failed: {end.cause}")
            error.exit_code = end.code
            raise error
        worker.count_death(end.cause, MAX_DEATHS, " without a finished trial")
        self._stored.assign(worker.index, None)
        text = f"{worker} died ({end.cause}) and is started again"
        if trial is not None:
            del self._trials[worker.index]
            if self._stored.lose(trial, f"{worker} died: {end.cause}"):
                text += f"; trial {trial} is lost"
        worker.start(end.cause)
        return text

    def _fail(self, worker: WatchedWorker, trial: int, cause: str) -> str:
        """Fails the trial of a worker, whose repetition would end as it did, and starts the worker again."""
        self._stored.assign(worker.index, None)
        self._stored.fail(trial, cause)
        del self._trials[worker.index]
        worker.deaths = 0
        worker.start(cause)
        return f"{cause}, which is started again; trial {trial} has failed"

    def close(self) -> None:
        """Nothing is left to do for the workers: what they still train is repeated by the next driver."""
        self._watcher.close()
