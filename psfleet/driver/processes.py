"""Workers that are processes of this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psfleet.driver.silence import file_time
from psfleet.job import trial_records
from psfleet.processes.child import Task
from psfleet.service import settings
from psfleet.service.cpu import num_cores, threads_each


class ProcessWorker:
    """See `Worker`.

    Args of the constructor:
        task: The process.
        life: The file that it renews each second.
    """

    def __init__(self, task: Task, life: Path) -> None:
        self.index = task.index
        self._task = task
        self._sign = file_time(life)

    def start(self, cause: str = "") -> None:
        """See `Worker`."""
        self._task.start(cause)

    def is_there(self) -> bool:
        """See `Worker`. What it is given waits for it."""
        return True

    def exit_code(self) -> int | None:
        """See `Worker`."""
        return self._task.exit_code()

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        return self._task.failure()

    def cause_of_end(self) -> str:
        """See `Worker`."""
        return self._task.cause_of_end()

    def newest_sign(self) -> object:
        """See `Worker`."""
        return self._sign()

    def kill(self) -> None:
        """See `Worker`."""
        self._task.kill()

    def close(self) -> None:
        """See `Worker`. It is killed."""
        self._task.signal(signal.SIGKILL)


@contextmanager
def process_workers(
    role: str, number: int, environment: Mapping[str, str], program_folder: Path, folder: Path
) -> Iterator[Sequence[ProcessWorker]]:
    """Context manager for workers that are processes of this machine; they are killed when the block has ended.

    Args:
        role: See `Task`.
        number: Of workers, which share the cores.
        environment: More of their variables.
        program_folder: Searched first for the program.
        folder: Of the driver; its folder `logs` gets their logs.
    """
    shared = {
        **environment,
        settings.PROGRAM_FOLDER: str(program_folder.resolve()),
        settings.OUT: str(folder.absolute()),
        settings.THREADS: str(threads_each(num_cores(), number)),
    }
    workers = []
    for index in range(number):
        task = Task(role, index, {**shared, settings.INDEX: str(index)}, folder / "logs" / f"worker-{index}.log")
        workers.append(ProcessWorker(task, trial_records.life_file(folder, index)))
    try:
        yield workers
    finally:
        # All are signalled before one is waited for, as those that are yet to be forked must not start then.
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.kill()
