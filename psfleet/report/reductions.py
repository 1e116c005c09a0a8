"""Record of the reductions of the learning rate by a plateau schedule: `reductions.jsonl`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from psfleet.report.json_lines import JsonLines
from psfleet.report.records import Count, Record


class Reduction(Record):
    """A reduction of the learning rate; one line of `reductions.jsonl`."""

    time: float = Field(description="Unix time in seconds.")
    evaluation: Count = Field(description="Step of the evaluation that decided it.")
    step: Count = Field(description="The update that follows this step is the first one with the new learning rate.")
    learning_rate: float = Field(description="The new learning rate, before the warm-up's factor.")


class ReductionLog(JsonLines[Reduction]):
    """`reductions.jsonl`: the reductions of a run folder. After a rollback they apply again at the same steps."""

    FILE_NAME: ClassVar[str] = "reductions.jsonl"
    _record = Reduction

    def made(self) -> tuple[Reduction, ...]:
        """The reductions in the order in which they were decided; of two by one evaluation the first one."""
        first: dict[int, Reduction] = {}
        for each in self.read():
            first.setdefault(each.evaluation, each)
        return tuple(first.values())
