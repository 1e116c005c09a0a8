"""Record of the reductions of the learning rate by a plateau schedule: `reductions.jsonl`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from psfleet.report.json_lines import JsonLines
from psfleet.report.records import Count, Record


@dataclass(frozen=True)
class Reduction:
    """A reduction of the learning rate.

    Attributes:
        evaluation: Step of the evaluation that decided it.
        step: The update that follows this step is the first one with the new learning rate.
        learning_rate: The new one, before the warm-up's factor.
    """

    evaluation: int
    step: int
    learning_rate: float


class ReductionLine(Record):
    """One line of `reductions.jsonl`: a reduction, or only the number of a chief that leads the run from there on."""

    time: float = Field(description="Unix time in seconds.")
    chief: Count = Field(0, description="Number of the chief that wrote it; grows with each chief that leads the run.")
    evaluation: Count | None = Field(None, description="See `Reduction`.")
    step: Count | None = Field(None, description="See `Reduction`.")
    learning_rate: float | None = Field(None, description="See `Reduction`.")

    def reduction(self) -> Reduction | None:
        """The reduction; None if it is none."""
        if self.evaluation is None or self.step is None or self.learning_rate is None:
            return None
        return Reduction(self.evaluation, self.step, self.learning_rate)


class ReductionLog(JsonLines[ReductionLine]):
    """`reductions.jsonl`: the reductions of a run folder. After a rollback they apply again at the same steps.

    A chief begins with a line that has its number. What a chief before it writes after that line does not count: it was
    frozen meanwhile, and the fleet has continued without that reduction.
    """

    FILE_NAME: ClassVar[str] = "reductions.jsonl"
    _record = ReductionLine

    def made(self) -> tuple[Reduction, ...]:
        """The reductions in the order in which they were decided; of two by one evaluation the first one."""
        first: dict[int, Reduction] = {}
        chief = 0
        for line in self.read():
            reduction = line.reduction()
            if line.chief >= chief and reduction is not None:
                first.setdefault(reduction.evaluation, reduction)
            chief = max(chief, line.chief)
        return tuple(first.values())

    def take_over(self) -> int:
        """Begins the lines of another chief; returns its number."""
        chief = 1 + max([line.chief for line in self.read()], default=0)
        self.append(ReductionLine(time=time.time(), chief=chief))
        return chief

    def add(self, reduction: Reduction, chief: int) -> bool:
        """Appends a reduction; False: it does not count, because another chief has begun its lines."""
        self.append(
            ReductionLine(
                time=time.time(), chief=chief, evaluation=reduction.evaluation, step=reduction.step,
                learning_rate=reduction.learning_rate,
            )
        )  # fmt: skip
        return reduction in self.made()
