"""The interface of a worker's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from worker_service.batch_reader import Batch, Reading


class Data(Protocol):
    """A worker's data; see `TrainingData` and `DynamicData`.

    Attributes:
        is_replayable: Whether the batch of a number is always the same; else the next one has any number.
    """

    is_replayable: bool

    def batches(self, start: int, reading: Reading) -> Iterator[Batch]:
        """The batches from a number on."""

    def num_skipped(self, start: int) -> int | None:
        """How many batches `batches(start)` would read before it yields, or None."""

    def report(self) -> None:
        """Reports at once what training was given, if that is counted."""
