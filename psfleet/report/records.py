"""Base class and types of the fields of all records of a run, and records that are parts of a report."""

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


class StepSecs(Record):
    """Distribution of step times."""

    p50: float | None = Field(None, description="Median step time in seconds; null: no step was timed.")
    p95: float | None = Field(None, description="95th percentile of step times in seconds; null: no step was timed.")


class WorkerGradients(Record):
    """Gradients of one worker, as counted by ps 0."""

    pushed: Count = Field(0, description="Gradients that the worker pushed.")
    used: Count = Field(0, description="Pushed gradients that were part of an update.")


class PsGradients(Record):
    """Gradients that one ps received."""

    pushed: Count = Field(0, description="Gradients that this ps received.")
    used: Count = Field(0, description="Received gradients that were part of an update of its shard.")
    dropped: Count = Field(0, description="Received gradients that were discarded: pushed - used.")


class Gradients(Record):
    """Numbers of gradients, as counted by ps 0. Each ps decides on its own which gradients it uses: see `per_ps`."""

    pushed: Count = Field(0, description="Gradients that workers pushed.")
    used: Count = Field(0, description="Gradients that were part of an update.")
    dropped: Count = Field(0, description="Gradients that were discarded: pushed - used.")
    since_step: Count = Field(
        0,
        description="Step from which all of these are counted: where the run resumed or last rolled back; else 0.",
    )
    per_worker: dict[str, WorkerGradients] = Field(
        default_factory=dict, description="The same for each worker, by index."
    )
    per_ps: list[PsGradients] = Field(
        default_factory=list, description="The same for each ps, in the order of indices."
    )


class Placement(Record):
    """Distribution of the parameters over the ps."""

    ps: list[Count] = Field(
        default_factory=list,
        description="Bytes of the model on each ps (parameters, state, frozen weights), in the order of indices.",
    )
    max_over_mean: float = Field(1.0, description="Maximum of the bytes on each ps divided by their mean; 1: even.")
