"""`python -m psfleet.sweep`: the driver of a study in a container; its workers are other containers, which join it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from psfleet.control.credentials import read_identity
from psfleet.driver.containers import ContainerWorker, container_workers
from psfleet.errors import BadJobError, PermanentError
from psfleet.job import trial_records
from psfleet.service.process import Service, Stop, run_service
from psfleet.service.settings import Settings
from psfleet.sweep.driver import Listener, Progress, sweep
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.progress_lines import finished_line
from psfleet.sweep.storage import num_trials

logger = logging.getLogger("psfleet.study")


def serve(settings: Settings, stop: Stop) -> int:
    """Drives the study to its end; returns the exit code.

    Raises:
        BadJobError: This process has no study.
        StoppedError: A signal stopped it; the next process continues the study.
        PsfleetError: As of `sweep`.
    """
    if settings.study is None:
        raise BadJobError("PSFLEET_STUDY is missing, expected a study as JSON")
    loaded = LoadedStudy.from_json(settings.study, settings.program_folder)

    def check() -> None:
        if stop.event.is_set():
            raise stop.error()

    is_recruited = threading.Event()
    recruit = partial(_workers, settings, is_recruited)
    try:
        found = sweep(loaded, settings.out, listener=_Log(loaded), recruit=recruit, check=check)
    except PermanentError:
        if is_recruited.is_set():
            raise
        # The workers end with the same exit code.
        with recruit(loaded, settings.out, "", min(loaded.study.fleet.workers, num_trials(loaded.study))):
            raise
    best = found.best[0]
    logger.info("best: trial %d, %s %.6g", best.number, loaded.study.objective.metric, best.value)
    return 0


def _workers(
    settings: Settings, is_recruited: threading.Event, loaded: LoadedStudy, folder: Path, socket: str, number: int
) -> AbstractContextManager[Sequence[ContainerWorker]]:
    """As `Recruit`; sets the event."""
    is_recruited.set()

    def writable(index: int, name: str) -> Path | None:
        return folder / name if trial_records.is_weights_name(name) else None

    identity = read_identity(settings.tls, "worker")
    return container_workers(settings.address, settings.run, number, identity, lambda name: None, writable, socket)


class _Log(Listener):
    """Logs each finished trial."""

    def __init__(self, loaded: LoadedStudy) -> None:
        self._metric = loaded.study.objective.metric

    def finished(self, trial: Any, progress: Progress) -> None:
        """See `Listener`."""
        extra = {"event": "trial", "trial": trial.number, "finished": len(progress.finished), "total": progress.total}
        logger.info("%s", finished_line(trial, progress, self._metric), extra=extra)

    def lost(self, text: str) -> None:
        """See `Listener`."""
        logger.warning("%s", text, extra={"event": "worker_lost"})


def _load() -> Service:
    return serve


if __name__ == "__main__":
    run_service("study", _load)
