"""Drives the workers of a prediction to their end, and writes the file of all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from psfleet import errors
from psfleet.driver.processes import process_workers
from psfleet.driver.watcher import End, WorkerWatcher
from psfleet.driver.worker import Worker
from psfleet.errors import ProgramError, UsageError
from psfleet.job.prediction_files import Request
from psfleet.job.sections import Deadlines
from psfleet.plurals import counted
from psfleet.predictions import files, folders
from psfleet.predictions.source import Source
from psfleet.processes.child import PREDICTION_WORKER

MAX_DEATHS = 3
"""How often a worker may die: its share is predicted again."""
POLL_SECS = 0.05
"""Interval in which the driver looks for complete shares and dead workers."""

OnLoss = Callable[[str], object]
"""Called with a line for each worker that died or gave no sign of life, and is started again."""


def require_callable(data: str) -> None:
    """Raises UsageError if a text does not name a data set."""
    module, _, name = data.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise UsageError(f"--data {data}: expected MODULE:CALLABLE")


def predict(source: Source, data: str, out: Path, workers: int, on_loss: OnLoss = lambda text: None) -> files.Shares:
    """Predicts a data set by processes of this machine, and writes the file; no process outlives the call.

    Args:
        data: `module:callable` of the data set.
        out: Appears when it is complete; a file that exists stays until then.
        workers: Number of processes.

    Raises:
        UsageError: The program cannot predict, or the file cannot be written.
        ProgramError: The program or the data set failed.
        LostPeerError: A worker dies again and again.
    """
    with folders.temporary(out, source.request(data, workers)) as (folder, request):
        (folder / "logs").mkdir()
        recruited = process_workers(PREDICTION_WORKER, workers, {}, source.folder, folder)
        return drive(request, source.job.deadlines, folder, out, recruited, on_loss)


def drive(
    request: Request,
    deadlines: Deadlines,
    folder: Path,
    out: Path,
    recruited: AbstractContextManager[Sequence[Worker]],
    on_loss: OnLoss,
    check: Callable[[], None] = lambda: None,
) -> files.Shares:
    """Has workers complete their shares, and writes the file.

    Args:
        deadlines: Of the job.
        folder: Of the request and the shares.
        out: As for `predict`.
        recruited: Context manager for the workers.
        check: Called again and again; ends the call by an error.

    Raises:
        PsfleetError: As of `predict`; also LostPeerError if workers are missing for `deadlines.start_secs`.
    """
    # The workers hear of an error that ends the inner block.
    with recruited as workers, folders.writable(out):
        _complete(request, folder, WorkerWatcher(workers, deadlines), on_loss, check)
        shares = files.Shares(folder, request.workers, request.data)
        temporary = folder / out.name
        files.write(shares, out, temporary)
        temporary.replace(out)
    return shares


def summary(shares: files.Shares, source: Source, workers: int, secs: float) -> str:
    """What was predicted, in one line."""
    outputs = ", ".join(f"{each.name} {each.dtype} {[shares.num_examples, *each.shape]}" for each in shares.outputs)
    return f"{outputs} of {source.name}, by {counted(workers, 'worker')} in {secs:.1f} s"


def _complete(
    request: Request, folder: Path, watcher: WorkerWatcher, on_loss: OnLoss, check: Callable[[], None]
) -> None:
    """Watches all workers until each has completed its share."""
    pause = threading.Event()
    watcher.start()
    try:
        while not _note_complete(request, folder, watcher):
            for end in watcher.ends():
                if files.complete_share(folder, end.watched.index, request.attempt) is None:
                    on_loss(_restarted(end))
            pause.wait(POLL_SECS)
            check()
    finally:
        watcher.close()


def _note_complete(request: Request, folder: Path, watcher: WorkerWatcher) -> bool:
    """Notes for the workers which shares are complete; whether all are."""
    found = False
    for each in watcher.workers:
        if not each.is_done and files.complete_share(folder, each.index, request.attempt) is not None:
            each.is_done = found = True
    if found:
        complete = tuple(each.index for each in watcher.workers if each.is_done)
        request.model_copy(update={"complete": complete}).write(folder)
    return all(each.is_done for each in watcher.workers)


def _restarted(end: End) -> str:
    """Starts the process of a worker again, or raises the error that a further one would have, too."""
    worker, failure = end.watched, end.failure
    if end.code in errors.PERMANENT_CODES | {errors.BUG} and failure is not None:
        error = ProgramError(failure["message"], failure.get("details", ""))
        error.exit_code = end.code
        raise error
    if end.is_by_program:
        raise ProgramError(f"the program ended {worker} with exit code {end.code}, expected it to return")
    worker.count_death(end.cause, MAX_DEATHS)
    worker.start(end.cause)
    return f"{worker} died ({end.cause}) and is started again; its share is predicted again"
