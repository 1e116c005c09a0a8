"""Schema of the verdict that `python -m worker_service.validation` writes: whether a program can be trained."""

from __future__ import annotations

from pydantic import Field

from psfleet.errors import ProgramError, PsfleetError
from psfleet.report.records import Record


class Verdict(Record):
    """Whether a program can be trained."""

    summary: str = Field("", description="What was found, in one line; empty if the program cannot be trained.")
    error: str = Field("", description="Why the program cannot be trained, in one line; empty if it can.")
    details: str = Field("", description="Traceback of the program's exception, or empty.")
    exit_code: int = Field(0, description="Exit code of the error; 0: the program can be trained.")

    @classmethod
    def of_error(cls, error: PsfleetError) -> Verdict:
        """The verdict on a program that raised or was refused."""
        return cls(error=str(error), details=error.details, exit_code=error.exit_code)

    def summary_or_raise(self) -> str:
        """The summary.

        Raises:
            ProgramError: The program cannot be trained; with the exit code of the error that was found.
        """
        if self.exit_code:
            error = ProgramError(self.error, self.details)
            error.exit_code = self.exit_code
            raise error
        return self.summary
