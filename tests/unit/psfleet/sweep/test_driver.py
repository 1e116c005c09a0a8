"""The driver of a study, with workers that finish their trials when a test says so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from support.study_samples import loaded

from psfleet.sweep.driver import Listener, Progress, sweep
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy


class IdleWorker:
    """A worker that lives, and does nothing by itself."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._signs = itertools.count()

    def start(self, cause: str = "") -> None:
        """See `Worker`."""

    def is_there(self) -> bool:
        """See `Worker`."""
        return True

    def exit_code(self) -> int | None:
        """See `Worker`."""
        return None

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        return None

    def cause_of_end(self) -> str:
        """See `Worker`."""
        return ""

    def newest_sign(self) -> object:
        """See `Worker`."""
        return next(self._signs)

    def kill(self) -> None:
        """See `Worker`."""

    def close(self) -> None:
        """See `Worker`."""


def test_trials_that_finish_at_once_are_counted_one_by_one(tmp_path: Path) -> None:
    study, folder = loaded(tmp_path), tmp_path / "studies"
    lines: list[tuple[int, int, float]] = []

    class Lines(Listener):
        def finished(self, trial: Any, progress: Progress) -> None:
            lines.append((trial.number, len(progress.finished), progress.best[0].value))

    @contextmanager
    def recruit(of: LoadedStudy, out: Path, socket: str, number: int) -> Iterator[Sequence[IdleWorker]]:
        yield [IdleWorker(index) for index in range(number)]

    def finish_both() -> None:
        """Called once both trials are given to workers."""
        stored = StoredStudy(study, folder)
        stored.study.sampler = optuna.samplers.RandomSampler()
        for trial in stored.trials():
            stored.study.tell(trial.number, 2.0 - trial.number)

    (tmp_path / "program.py").write_text("")
    found = sweep(study, folder, listener=Lines(), recruit=recruit, check=finish_both)
    assert lines == [(0, 1, 2.0), (1, 2, 1.0)]
    assert len(found.finished) == 2
