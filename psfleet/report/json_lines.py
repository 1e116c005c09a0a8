"""Files of records, one JSON object per line, that a process which is killed leaves readable."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from psfleet.errors import BadJobError
from psfleet.report.records import Record, StepRecord

RecordT = TypeVar("RecordT", bound=Record)
StepRecordT = TypeVar("StepRecordT", bound=StepRecord)

logger = logging.getLogger("psfleet.report")


class JsonLines(Generic[RecordT]):
    """An append-only file of records, one per line; only the last line of a killed writer can be incomplete.

    A line can also be of another version, or edited. One rule applies to all files: what decides how training continues
    reads with `read`, which refuses such a line, because without it the decision could be another one; all else, which
    only shows records, reads with `readable`, which leaves it out.
    """

    _record: type[RecordT]

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def append(self, record: RecordT) -> None:
        """Appends one line, after ending an incomplete last line, which `read` skips."""
        line = record.model_dump_json().encode() + b"\n"
        with self.path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def num_bytes(self) -> int:
        """Size of the file; 0 if there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, offset: int = 0) -> list[RecordT]:
        """Reads all complete records from a byte on, in the order of the file; empty if there is no file.

        Raises:
            BadJobError: A line is JSON but not a record of this version.
        """
        records, foreign = self._parsed(offset)
        if foreign:
            raise foreign[0]
        return records

    def readable(self, offset: int = 0) -> list[RecordT]:
        """As `read`, without the lines that are no records of this version, which are logged."""
        records, foreign = self._parsed(offset)
        if foreign:
            logger.warning("%d lines of %s are skipped; the first one: %s", len(foreign), self.path, foreign[0])
        return records

    def _parsed(self, offset: int) -> tuple[list[RecordT], list[BadJobError]]:
        """The complete records, and an error for each line that is JSON but none.

        Incomplete lines are neither: the beginning of a JSON object is never valid JSON.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], []
        records, foreign = list[RecordT](), list[BadJobError]()
        first = content[:offset].count(b"\n") + 1
        for number, line in enumerate(content[offset:].split(b"\n"), first):
            try:
                if line:
                    records.append(self._record.model_validate_json(line))
            except ValidationError as error:
                if error.errors()[0]["type"] != "json_invalid":
                    foreign.append(mismatch(f"{self.path} line {number}", error))
        return records, foreign


class StepLines(JsonLines[StepRecordT]):
    """A file of records of steps, which grows over restarts, rollbacks and resumed runs."""

    def curve(self) -> list[StepRecordT]:
        """The readable records by ascending step, without those that a rollback has undone.

        Each replaces all before it of its step or a higher one, and those that `StepRecord.replaces` names.
        """
        kept: list[StepRecordT] = []
        for record in self.readable():
            while kept and record.replaces(kept[-1]):
                kept.pop()
            kept.append(record)
        return kept


def mismatch(source: str, error: ValidationError) -> BadJobError:
    """The error of a file that is not of this version: its first validation error in one line."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "content"
    return BadJobError(f"{source}: {field}: {problem['msg']}")
