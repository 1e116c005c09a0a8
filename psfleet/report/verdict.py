"""Schema of the verdict that `worker_service.validation` and `worker_service.export` write on a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from psfleet.errors import ProgramError, PsfleetError
from psfleet.report.records import Record


class Verdict(Record):
    """Whether a program can be trained, or its model was exported."""

    summary: str = Field("", description="What was found, in one line; empty after an error.")
    error: str = Field("", description="What failed, in one line; empty if nothing did.")
    details: str = Field("", description="Traceback of the program's exception, or empty.")
    exit_code: int = Field(0, description="Exit code of the error; 0: there was none.")

    @classmethod
    def of_error(cls, error: PsfleetError) -> Verdict:
        """The verdict on a program that raised or was refused."""
        return cls(error=str(error), details=error.details, exit_code=error.exit_code)

    def summary_or_raise(self) -> str:
        """The summary.

        Raises:
            ProgramError: There was an error; with the exit code of the error that was found.
        """
        if self.exit_code:
            error = ProgramError(self.error, self.details)
            error.exit_code = self.exit_code
            raise error
        return self.summary


def write_verdict(work: Callable[[str, str], str]) -> None:
    """Writes the verdict of a module that `psfleet.processes.validation.summary_of` runs.

    Args:
        work: Called with the standard input and the first argument; returns the summary.
    """
    try:
        verdict = Verdict(summary=work(sys.stdin.read(), sys.argv[1]))
    except PsfleetError as error:
        verdict = Verdict.of_error(error)
    Path(sys.argv[2]).write_text(verdict.model_dump_json(), encoding="utf-8")


def end_at_once() -> None:
    """Ends this process; a data set that blocks inside TensorFlow would keep it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
