"""Base class and types of the fields of all records of a run, and the record of one attempt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
StalenessValue = Annotated[str, Field(pattern=r"^\d+$")]
OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
Status = Literal["done", "stopped", "failed"]


class Record(BaseModel):
    """Base class of all records: immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class StepRecord(Record):
    """Base class of the records of a step; a rollback can make them invalid."""

    time: float = Field(description="Unix time in seconds.")
    step: Count = Field(description="Number of updates applied so far.")
    generation: Count = Field(description="Generation of the fleet's state at this step.")
    first_step: Count | None = Field(
        None,
        description="Step at which its generation began; what earlier ones trained after it was undone. null: not "
        "known.",
    )

    def undoes(self, before: StepRecord) -> bool:
        """Whether the rollback that began the generation of this record has undone the step of an earlier generation.

        If the first step is not known, the generation began at this record's step at the latest.
        """
        began = self.step if self.first_step is None else self.first_step
        return before.generation < self.generation and before.step > began

    def replaces(self, before: StepRecord) -> bool:
        """Whether a record before this one is of a step that was undone, or that is trained again."""
        return self.undoes(before) or before.step >= self.step


class Attempt(Record):
    """One start of the run: the first, one that resumed it, or one that was refused or failed."""

    run: str = Field(description="Identifier of the attempt; on compose and Kubernetes the job's name.")
    started: float = Field(
        0.0, description="When it started, in Unix time in seconds; 0: before attempts were recorded."
    )
    seconds: float = Field(0.0, description="Its duration in seconds.")
    status: Status = Field(description="Its outcome, as in `status` of the report.")
    exit_code: Count = Field(description="Its exit code.")
    error: OneLine | None = Field(None, description="Cause of its end, in one line; null if the status is done.")
    first_step: Count | None = Field(
        None,
        description="Step of the newest checkpoint at its start, 0 for a new run; null: not known, or none is valid.",
    )
    final_step: Count | None = Field(
        None, description="Number of updates that the model included at its end; null: not known."
    )
    target_step: Count = Field(0, description="`train.steps` of its job.")
    changes: list[str] = Field(
        default_factory=list,
        description="What of the job had changed since that checkpoint, each as `field old -> new`.",
    )
