"""The workers of a study: started, given trials, and started again after they died."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.driver.processes import ProcessWorker
from psfleet.driver.silence import Silence
from psfleet.driver.worker import Worker, is_end_by_program
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job import trial_records
from psfleet.job.trial_access import TrialAccess
from psfleet.processes.child import TRIAL_WORKER, Task
from psfleet.service import settings
from psfleet.service.cpu import num_cores, threads_each
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


@contextmanager
def processes(loaded: LoadedStudy, folder: Path, socket: str, number: int) -> Iterator[Sequence[Worker]]:
    """Context manager for workers that are processes of this machine.

    Args:
        folder: Of the study's results.
        socket: See `TrialAccess`.
        number: Of workers.
    """
    access = access_to(loaded.study, socket)
    workers = []
    for index in range(number):
        environment = {
            settings.TRIALS: access.model_dump_json(),
            settings.PROGRAM_FOLDER: str(loaded.folder.resolve()),
            settings.OUT: str(folder.absolute()),
            settings.INDEX: str(index),
            settings.THREADS: str(threads_each(num_cores(), number)),
        }
        task = Task(TRIAL_WORKER, index, environment, folder / "logs" / f"worker-{index}.log")
        workers.append(ProcessWorker(task, trial_records.life_file(folder, index)))
    yield workers


@dataclass
class TrialWorker:
    """One worker: its process, and the number of its trial.

    Attributes:
        task: The process.
        silence: How long the process has given no sign of life.
        trial: Its trial; None: it is idle.
        deaths: In a row, without a finished trial.
    """

    task: Worker
    silence: Silence
    trial: int | None = None
    deaths: int = 0


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
        self._start_secs = loaded.deadlines.start_secs
        self._clock = clock
        self._seen = clock()
        self._workers = [TrialWorker(each, Silence(each.newest_sign, loaded.deadlines, clock)) for each in workers]

    def start(self) -> None:
        """Starts all processes."""
        for worker in self._workers:
            self._stored.assign(worker.task.index, None)
            worker.silence.restart()
            worker.task.start()

    def idle(self) -> list[TrialWorker]:
        """The workers that can be given a trial."""
        return [worker for worker in self._workers if worker.trial is None and worker.task.is_there()]

    def assign(self, worker: TrialWorker, trial: Any) -> None:
        """Gives an idle worker a trial."""
        worker.trial = trial.number
        self._stored.assign(worker.task.index, trial)

    def release(self, finished: set[int]) -> None:
        """Makes the workers idle whose trials have finished."""
        for worker in self._workers:
            if worker.trial in finished:
                worker.trial, worker.deaths = None, 0

    def revive(self) -> list[str]:
        """Starts processes again that have ended or give no sign of life, and has their trials repeated.

        Returns:
            What happened, a line for each.

        Raises:
            LostPeerError: A worker dies again and again, or no worker was there for `deadlines.start_secs`.
            PsfleetError: A worker failed in a way that would recur.
        """
        texts = []
        there = [worker for worker in self._workers if worker.task.is_there()]
        if there:
            self._seen = self._clock()
        elif self._clock() - self._seen > self._start_secs:
            raise LostPeerError(f"no worker was there for {self._start_secs:g} s, expected {len(self._workers)}")
        for worker in there:
            if worker.task.exit_code() is not None:
                texts.append(self._revive(worker, worker.task.cause_of_end()))
            elif worker.silence.is_too_long():
                # It reports nothing from here on, also if it was frozen and continues.
                worker.task.kill()
                texts.append(self._revive(worker, f"no sign of life for {worker.silence.limit_secs:g} s"))
        return texts

    def _revive(self, worker: TrialWorker, cause: str) -> str:
        task, code = worker.task, worker.task.exit_code()
        who = f"worker {task.index}"
        if worker.trial is not None and code is not None and is_end_by_program(code, task.failure() is not None):
            return self._fail(worker, f"the program ended {who} with exit code {code}")
        if code in errors.PERMANENT_CODES:
            error = PsfleetError(f"{who} failed: {cause}")
            error.exit_code = code
            raise error
        worker.deaths += 1
        if worker.deaths > MAX_DEATHS:
            raise LostPeerError(f"{who} died {worker.deaths} times without a finished trial, last: {cause}")
        text = f"{who} died ({cause}) and is started again"
        self._stored.assign(task.index, None)
        if worker.trial is not None:
            if self._stored.lose(worker.trial, f"{who} died: {cause}"):
                text += f"; trial {worker.trial} is lost"
            worker.trial = None
        worker.silence.restart()
        task.start(cause or "it ended")
        return text

    def _fail(self, worker: TrialWorker, cause: str) -> str:
        """Fails the trial of a worker, whose repetition would end as it did, and starts the worker again."""
        assert worker.trial is not None, "the worker has a trial"
        self._stored.assign(worker.task.index, None)
        self._stored.fail(worker.trial, cause)
        text = f"{cause}, which is started again; trial {worker.trial} has failed"
        worker.trial, worker.deaths = None, 0
        worker.silence.restart()
        worker.task.start(cause)
        return text

    def close(self) -> None:
        """Nothing is left to do for the workers: what they still train is repeated by the next driver."""
        for worker in self._workers:
            worker.task.close()
