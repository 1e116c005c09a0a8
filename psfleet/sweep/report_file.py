"""The file `report.html` of a study, which is written at most every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psfleet.files import replace_file
from psfleet.sweep import report, results
from psfleet.sweep.study_file import Study

PAGE_SECS = 5.0
"""Interval between two versions, at least: an idle worker waits for it, in a large study for a part of a second."""


class ReportFile:
    """The page of a study; used by the driver's thread.

    Args of the constructor:
        folder: Of the results.
        total: Number of trials of the study.
        finished: Returns the finished trials.
    """

    def __init__(self, study: Study, folder: Path, total: int, finished: Callable[[], list[Any]]) -> None:
        self._study = study
        self._path = folder / results.REPORT
        self._total = total
        self._finished = finished
        # When it is written again (monotonic, in seconds).
        self._due = 0.0
        self._is_old = False

    def write(self) -> None:
        """Writes it at once; raises OSError."""
        finished = self._finished()
        page = report.page(self._study, finished, results.best_first(self._study, finished), self._total)
        replace_file(self._path, page)
        self._due, self._is_old = time.monotonic() + PAGE_SECS, False

    def outdate(self) -> None:
        """A trial has finished since it was written."""
        self._is_old = True

    def write_if_due(self) -> None:
        """Writes it if it is out of date, and not too young; raises OSError."""
        if self._is_old and time.monotonic() >= self._due:
            self.write()
