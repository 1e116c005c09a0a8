"""Append-only files of records, one JSON object per line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from psfleet.errors import BadJobError


class _OfStep(Protocol):
    """A record of a step."""

    @property
    def step(self) -> int:
        """The global step."""


RecordT = TypeVar("RecordT", bound=BaseModel)
OfStepT = TypeVar("OfStepT", bound=_OfStep)


class JsonLines(Generic[RecordT]):
    """An append-only file of records, one per line; only the last line of a killed writer can be incomplete."""

    _record: type[RecordT]

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: RecordT) -> None:
        """Appends one line, after ending an incomplete last line, which `read` skips."""
        line = record.model_dump_json().encode() + b"\n"
        with self.path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def read(self) -> list[RecordT]:
        """Reads all complete records, in the order of the file; empty if there is no file.

        Raises:
            BadJobError: A line is JSON but not a record of this version.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        records = (self._parsed(line, number) for number, line in enumerate(lines, 1) if line)
        return [record for record in records if record is not None]

    def _parsed(self, line: bytes, number: int) -> RecordT | None:
        """Parses a line; None if it is incomplete. The beginning of a JSON object is never valid JSON."""
        try:
            return self._record.model_validate_json(line)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                return None
            raise mismatch(f"{self.path} line {number}", error) from error


def without_undone(records: Iterable[OfStepT]) -> list[OfStepT]:
    """Records in the order of their file, by ascending step: each replaces those before it of its or a higher step."""
    kept: list[OfStepT] = []
    for record in records:
        while kept and kept[-1].step >= record.step:
            kept.pop()
        kept.append(record)
    return kept


def mismatch(source: str, error: ValidationError) -> BadJobError:
    """The first validation error of a file, as one line."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "content"
    return BadJobError(f"{source}: {field}: {problem['msg']}")
