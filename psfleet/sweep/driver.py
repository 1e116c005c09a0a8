"""Drives a study from its start or restart to its end: trials for idle workers, results, lost trials."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from psfleet import errors
from psfleet.driver.worker import Worker
from psfleet.errors import PsfleetError, StorageError
from psfleet.files import only_user
from psfleet.job import trial_records
from psfleet.service.process_environment import require_tensorflow
from psfleet.sweep import results
from psfleet.sweep.database import DATABASE, optuna_module, storage_errors
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.report_file import ReportFile
from psfleet.sweep.storage import StoredStudy, num_trials
from psfleet.sweep.workers import Workers, processes

MIN_FAILED = 3
"""So many trials fail, each with values of its own, before their failures are those of the program.

With more workers it is their number.
"""
POLL_SECS = 0.05
"""Interval in which the driver looks for finished trials and dead workers."""


@dataclass(frozen=True)
class Progress:
    """What a study has reached.

    Attributes:
        total: Number of its trials.
        finished: Optuna's objects of those that are complete, pruned or failed.
        best: The complete ones, the best one first.
    """

    total: int
    finished: list[Any]
    best: list[Any]


class Listener:
    """Receives the progress of a study; this one ignores it."""

    def starting(self, progress: Progress, workers: int) -> None:
        """So many workers are started for the trials that are not finished."""

    def finished(self, trial: Any, progress: Progress) -> None:
        """A trial is complete, pruned or has failed."""

    def lost(self, text: str) -> None:
        """A worker died or gave no sign of life, and is started again."""


Recruit = Callable[[LoadedStudy, Path, str, int], AbstractContextManager[Sequence[Worker]]]
"""Context manager for the workers of a study: of the folder of its results, the socket of its storage, their number."""


def sweep(
    loaded: LoadedStudy,
    folder: Path,
    fresh: bool = False,
    listener: Listener | None = None,
    recruit: Recruit = processes,
    check: Callable[[], None] = lambda: None,
) -> Progress:
    """Runs the trials of a study that are not finished yet, and writes its files; no process outlives the call.

    Args:
        folder: Of the results.
        fresh: Whether the results of an earlier study in `folder` are deleted first.
        recruit: The workers.
        check: Called again and again; ends the call by an error.

    Raises:
        UsageError: A package is missing, or another driver uses the folder.
        BadJobError: The folder has another study, or the program does not report the objective.
        ProgramError: The program fails in the first trials before any has made a step, or no trial is complete.
        LostPeerError: A worker dies again and again.
        StorageError: The folder cannot be written, or another program has locked the database.
    """
    require_tensorflow()
    optuna_module()
    with only_user(folder, "psfleet sweep"), storage_errors(folder):
        if fresh:
            clear(folder)
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "weights").mkdir(exist_ok=True)
        stored = StoredStudy(loaded, folder)
        stored.lose_running("the driver of the study ended")
        study = loaded.study
        # In a folder that only this user can open: what serves the storage asks for no password.
        with TemporaryDirectory(prefix="psfleet-") as private:
            socket = str(Path(private) / "storage")
            number = min(study.fleet.workers, num_trials(study))
            drive = _Drive(loaded, folder, stored, listener or Listener(), check)
            with recruit(loaded, folder, socket, number) as workers:
                return drive.run(socket, Workers(stored, workers, loaded))


class _Drive:
    """One call of `sweep`."""

    def __init__(
        self, loaded: LoadedStudy, folder: Path, stored: StoredStudy, listener: Listener, check: Callable[[], None]
    ) -> None:
        self._loaded = loaded
        self._folder = folder
        self._stored = stored
        self._listener = listener
        self._check = check
        self._total = num_trials(loaded.study)
        self._report = ReportFile(loaded.study, folder, self._total, stored.finished)
        # An earlier driver may have died before it saw that the program fails.
        self._repeat_unstarted(num_first=0)
        self._seen = {trial.number for trial in stored.finished()}

    def run(self, socket: str, workers: Workers) -> Progress:
        if not self._is_done():
            with self._stored.serving(socket):
                try:
                    self._listener.starting(self._progress(), workers.number)
                    workers.start()
                    self._until_done(workers)
                finally:
                    workers.close()
        self._write()
        with self._files_written():
            self._report.write()
        found = self._progress()
        if not found.best:
            raise results.none_complete(self._loaded.study, found.finished)
        return found

    def _is_done(self) -> bool:
        trials = self._stored.trials()
        return len(trials) >= self._total and all(trial.state.is_finished() for trial in trials)

    def _until_done(self, workers: Workers) -> None:
        pause = threading.Event()
        while True:
            self._collect(workers)
            for worker in workers.idle():
                trial = self._stored.ask(self._total)
                if trial is None:
                    break
                workers.assign(worker, trial)
            if self._is_done():
                self._collect(workers)
                return
            pause.wait(POLL_SECS)
            self._check()
            with self._files_written():
                self._report.write_if_due()
            # A result that a worker reported before it died counts.
            self._collect(workers)
            for text in workers.revive():
                self._listener.lost(text)

    def _collect(self, workers: Workers) -> None:
        """Records trials that have finished since the last call."""
        finished = self._stored.finished()
        new = [trial for trial in finished if trial.number not in self._seen]
        workers.release({trial.number for trial in new})
        if new:
            self._write()
        for trial in new:
            self._seen.add(trial.number)
            self._listener.finished(trial, self._progress())
            self._require_program()

    def _require_program(self) -> None:
        """Ends the study if a trial has failed as all others would; the next start repeats such trials."""
        for trial in self._repeat_unstarted(max(MIN_FAILED, self._loaded.study.fleet.workers)):
            error = PsfleetError(str(trial.user_attrs.get(trial_records.ERROR)))
            error.exit_code = trial.user_attrs[trial_records.EXIT_CODE]
            error.details = trial.user_attrs.get(trial_records.DETAILS, "")
            raise error

    def _repeat_unstarted(self, num_first: int) -> list[Any]:
        """Has the trials repeated that failed as all others would; returns them.

        Args:
            num_first: Trials in which the program fails before it is the program that fails, and not their values; in
                all of a smaller study.
        """
        trials = self._stored.trials()
        failed = [each for each in trials if each.state.name == "FAIL"]
        by_program = [each for each in failed if _exit_code(each) == errors.PROGRAM_FAILED]
        # Without those that no worker has trained. Any of the first that is still running may make a step.
        first = [each for each in trials if each not in failed or _exit_code(each) is not None][:num_first]
        is_started = any(trial_records.STARTED in each.user_attrs for each in trials)
        found = [each for each in failed if _exit_code(each) == errors.BAD_JOB]
        if not is_started and len(first) >= min(num_first, self._total) and all(each in by_program for each in first):
            found += by_program
        for each in found:
            self._stored.repeat(each)
        return found

    def _write(self) -> None:
        with self._files_written():
            results.write(self._loaded, self._folder, self._stored.finished(), self._stored.repeated())
            self._report.outdate()
            self._report.write_if_due()

    @contextmanager
    def _files_written(self) -> Iterator[None]:
        """Raises StorageError if a file cannot be written."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"{error.filename or self._folder}: {error.strerror or error}") from error

    def _progress(self) -> Progress:
        """Of the trials that were seen: of those that finish at once, each has the number and the best of its own."""
        finished = [trial for trial in self._stored.finished() if trial.number in self._seen]
        return Progress(self._total, finished, results.best_first(self._loaded.study, finished))


def _exit_code(trial: Any) -> int | None:
    """Of the error by which a trial has failed; None: its values are no valid job, or its workers died."""
    return cast("int | None", trial.user_attrs.get(trial_records.EXIT_CODE))


def clear(folder: Path) -> None:
    """Deletes the results of an earlier study, if there is one; its database at last."""
    if not (folder / DATABASE).exists():
        return
    for name in ("logs", "weights"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = (results.TRIALS, results.BEST, results.REPORT, f"{results.BEST_PROGRAM}.py")
    for name in (*files, DATABASE + "-journal", results.COPIED, DATABASE):
        (folder / name).unlink(missing_ok=True)
