"""Schema of the verdict that `worker_service.validation` and `worker_service.export` write on a program."""

from __future__ import annotations

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
