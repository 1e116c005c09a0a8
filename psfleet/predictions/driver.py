"""Drives the workers of a prediction to their end, and writes the file of all."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psfleet import errors
from psfleet.driver.processes import ProcessWorker
from psfleet.driver.silence import Silence
from psfleet.driver.worker import is_end_by_program
from psfleet.errors import LostPeerError, ProgramError, UsageError
from psfleet.job import trial_records
from psfleet.job.prediction_files import Request, Share
from psfleet.predictions import files
from psfleet.predictions.source import Source
from psfleet.processes.child import PREDICTION_WORKER, Task
from psfleet.service import settings
from psfleet.service.cpu import num_cores, threads_each

MAX_DEATHS = 3
"""How often a worker may die: its share is predicted again."""
POLL_SECS = 0.05
"""Interval in which the driver looks for the ends of workers."""


@dataclass
class _Worker:
    """A worker: its process, how long it has given no sign of life, and how often it has died."""

    task: ProcessWorker
    silence: Silence
    deaths: int = 0
    is_done: bool = False


def predict(
    source: Source, data: str, out: Path, workers: int, on_loss: Callable[[str], object] = lambda text: None
) -> files.Shares:
    """Predicts a data set, and writes the file; no process outlives the call.

    Args:
        data: `module:callable` of the data set.
        out: Appears when it is complete; a file that exists stays until then.
        workers: Number of processes.
        on_loss: Called with a line for each worker that died or gave no sign of life, and is started again.

    Raises:
        UsageError: The program cannot predict, or the file cannot be written.
        ProgramError: The program or the data set failed.
        LostPeerError: A worker dies again and again.
    """
    with _folder_beside(out) as folder:
        request = Request(
            job=source.job.model_dump_json(),
            checkpoint=source.checkpoint,
            weights=source.weights,
            data=data,
            workers=workers,
        )
        request.write(folder)
        (folder / "logs").mkdir()
        _run([_worker(index, workers, source, folder) for index in range(workers)], folder, on_loss)
        shares = files.Shares(folder, workers, data)
        temporary = folder / out.name
        files.write(shares, out, temporary)
        temporary.replace(out)
    return shares


@contextmanager
def _folder_beside(out: Path) -> Iterator[Path]:
    """Context manager for a hidden folder on the disk of the file, which only this user can enter."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent)).absolute()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _worker(index: int, workers: int, source: Source, folder: Path) -> _Worker:
    environment = {
        settings.PROGRAM_FOLDER: str(source.folder.absolute()),
        settings.OUT: str(folder),
        settings.INDEX: str(index),
        settings.THREADS: str(threads_each(num_cores(), workers)),
    }
    task = Task(PREDICTION_WORKER, index, environment, folder / "logs" / f"worker-{index}.log")
    worker = ProcessWorker(task, trial_records.life_file(folder, index))
    return _Worker(worker, Silence(worker.newest_sign, source.job.deadlines))


def _run(workers: list[_Worker], folder: Path, on_loss: Callable[[str], object]) -> None:
    """Runs all workers until each has completed its share."""
    pause = threading.Event()
    try:
        for worker in workers:
            worker.task.start()
        while not all(worker.is_done for worker in workers):
            pause.wait(POLL_SECS)
            for worker in workers:
                if not worker.is_done and (text := _look(worker, folder)):
                    on_loss(text)
    finally:
        # All are signalled before one is waited for, as those that are yet to be forked must not start then.
        for worker in workers:
            worker.task.signal(signal.SIGKILL)
        for worker in workers:
            worker.task.kill()


def _look(worker: _Worker, folder: Path) -> str:
    """Looks at a worker that has not completed its share; what happened to it, or nothing."""
    task, code = worker.task, worker.task.exit_code()
    if code is None:
        if not worker.silence.is_too_long():
            return ""
        task.kill()
        return _restarted(worker, f"no sign of life for {worker.silence.limit_secs:g} s")
    if code == errors.DONE and _is_complete(folder, task.index):
        worker.is_done = True
        return ""
    failure = task.failure()
    if code in errors.PERMANENT_CODES | {errors.BUG} and failure is not None:
        error = ProgramError(failure["message"], failure.get("details", ""))
        error.exit_code = code
        raise error
    if is_end_by_program(code, failure is not None):
        raise ProgramError(f"the program ended worker {task.index} with exit code {code}, expected it to return")
    return _restarted(worker, task.cause_of_end())


def _restarted(worker: _Worker, cause: str) -> str:
    worker.deaths += 1
    who = f"worker {worker.task.index}"
    if worker.deaths > MAX_DEATHS:
        raise LostPeerError(f"{who} died {worker.deaths} times, last: {cause}")
    worker.silence.restart()
    worker.task.start(cause)
    return f"{who} died ({cause}) and is started again; its share is predicted again"


def _is_complete(folder: Path, index: int) -> bool:
    try:
        Share.read(folder, index)
    except FileNotFoundError:
        return False
    return True
