"""Files of records, one JSON object per line, that a process which is killed leaves readable."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from psfleet.errors import BadJobError
from psfleet.report.records import Record, StepRecord

RecordT = TypeVar("RecordT", bound=Record)
StepRecordT = TypeVar("StepRecordT", bound=StepRecord)

logger = logging.getLogger("psfleet.report")

BLOCK_BYTES = 1 << 16
"""Read at once from the end of a file."""
DRAWN_RECORDS = 20_000
"""Of a curve on a page, which draws a few hundred of them: a run of days has hundreds of thousands."""


class JsonLines(Generic[RecordT]):
    """An append-only file of records, one per line; only the last line of a killed writer can be incomplete.

    A line can also be of another version, or edited. One rule applies to all files: what decides how training continues
    reads with `read` or `stream`, which refuse such a line, because without it the decision could be another one; all
    else, which only shows records, reads with `readable` or `last`, which leave it out.
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
        return list(self.stream(offset))

    def stream(self, offset: int = 0) -> Iterator[RecordT]:
        """The records of `read` one after the other, none of which is kept; raises as `read`."""
        for each in self._parsed(offset):
            if isinstance(each, BadJobError):
                raise each
            yield each

    def readable(self, offset: int = 0) -> list[RecordT]:
        """As `read`, without the lines that are no records of this version, which are logged."""
        return list(self._readable(offset))

    def last(self) -> RecordT | None:
        """The last record of `readable`, for which only the end of the file is read; None: there is none.

        Lines after it that are no records of this version are logged.
        """
        num_foreign = 0
        first: BadJobError | None = None
        found: RecordT | None = None
        for line in self._lines_from_end():
            each = self._parse(line, str(self.path))
            if isinstance(each, BadJobError):
                num_foreign, first = num_foreign + 1, each
            elif each is not None:
                found = each
                break
        self._warn(num_foreign, first)
        return found

    def _readable(self, offset: int = 0) -> Iterator[RecordT]:
        num_foreign = 0
        first: BadJobError | None = None
        for each in self._parsed(offset):
            if isinstance(each, BadJobError):
                num_foreign, first = num_foreign + 1, first or each
            else:
                yield each
        self._warn(num_foreign, first)

    def _warn(self, num_foreign: int, first: BadJobError | None) -> None:
        if first is not None:
            logger.warning("%d lines of %s are skipped; the first one: %s", num_foreign, self.path, first)

    def _parsed(self, offset: int) -> Iterator[RecordT | BadJobError]:
        """The complete records from a byte on, and an error for each line that is JSON but none."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            first = file.read(offset).count(b"\n") + 1
            for number, line in enumerate(file, first):
                each = self._parse(line, f"{self.path} line {number}")
                if each is not None:
                    yield each

    def _parse(self, line: bytes, source: str) -> RecordT | BadJobError | None:
        """The record of a line, or the error of one that is JSON but none.

        None: the line is empty or incomplete. The beginning of a JSON object is never valid JSON.
        """
        try:
            return self._record.model_validate_json(line)
        except ValidationError as error:
            return None if error.errors()[0]["type"] == "json_invalid" else mismatch(source, error)

    def _lines_from_end(self) -> Iterator[bytes]:
        """The lines without their ends, the last one first."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            end, begun = file.seek(0, os.SEEK_END), b""
            while end:
                start = max(0, end - BLOCK_BYTES)
                file.seek(start)
                begun, *lines = (file.read(end - start) + begun).split(b"\n")
                yield from reversed(lines)
                end = start
            yield begun


class StepLines(JsonLines[StepRecordT]):
    """A file of records of steps, which grows over restarts, rollbacks and resumed runs."""

    def curve(self, at_most: int | None = None) -> list[StepRecordT]:
        """The readable records by ascending step, without those that a rollback has undone.

        Each replaces all before it of its step or a higher one, and those that `StepRecord.replaces` names.

        Args:
            at_most: If there are more records, every second, fourth, eighth one and so on is kept, and the last one;
                None: all are kept. After a rollback that leaves room for more records, fewer are left out again.
        """
        kept: list[StepRecordT] = []
        # Record `number * stride` is kept at index `number`.
        number, stride, is_between = 0, 1, False
        for record in self._readable():
            if is_between:
                # Kept so far as the last one.
                kept.pop()
            num_before = len(kept)
            while kept and record.replaces(kept[-1]):
                kept.pop()
            if len(kept) < num_before and at_most is not None:
                while stride > 1 and len(kept) * 2 <= at_most:
                    stride //= 2
                number = len(kept) * stride
            kept.append(record)
            if at_most is not None and len(kept) > at_most:
                # The first and the newest one stay.
                kept = [*kept[:-1:2], record]
                stride *= 2
            is_between = number % stride != 0
            number += 1
        return kept


def mismatch(source: str, error: ValidationError) -> BadJobError:
    """The error of a file that is not of this version: its first validation error in one line."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "content"
    return BadJobError(f"{source}: {field}: {problem['msg']}")
