"""Sections of the report that hold what was measured: step times, gradients, and the placement of the parameters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from psfleet.report.records import Count, Record


class StepSecs(Record):
    """Distribution of step times."""

    p50: float | None = Field(None, description="Median step time in seconds; null: no step was timed.")
    p95: float | None = Field(None, description="95th percentile of step times in seconds; null: no step was timed.")


class WorkerGradients(Record):
    """Gradients of one worker, as counted by ps 0."""

    pushed: Count = Field(0, description="Gradients that the worker pushed.")
    used: Count = Field(0, description="Pushed gradients that were part of an update.")
    examples_per_sec: float | None = Field(
        None,
        description="Examples of pushed gradients per second from the worker's first to its last gradient; "
        "null: not measured.",
    )


class PsGradients(Record):
    """Gradients that one ps received."""

    pushed: Count = Field(0, description="Gradients that this ps received.")
    used: Count = Field(0, description="Received gradients that were part of an update of its shard.")
    dropped: Count = Field(0, description="Received gradients that were discarded: pushed - used.")


class Gradients(Record):
    """Numbers of gradients, as counted by ps 0. Each ps decides on its own which gradients it uses: see `per_ps`.

    Those of a ps that could not be reached at the end are 0.
    """

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
        description="Bytes of the model on each ps (parameters, state, frozen weights), in the order of indices; 0: "
        "the ps could not be reached at the end.",
    )
    max_over_mean: float = Field(
        1.0, description="Maximum of the bytes on each ps that is known divided by their mean; 1: even."
    )


class DataEpoch(Record):
    """Examples of one epoch, in which each loader passes once over its part of the data set."""

    epoch: Count = Field(description="Number of the epoch, from 0 at the start of the attempt.")
    delivered: Count = Field(
        0,
        description="Examples that training was given, each once; without those of the last second of a worker that "
        "was killed.",
    )
    lost: Count | None = Field(
        None,
        description="Examples of the data set that training was not given; null: the epoch is not over, or the size of "
        "the data set is not known.",
    )


class DataReading(Record):
    """Examples that loaders gave to the workers that asked first. No batch is a function of the seed."""

    sharding: Literal["dynamic"] = Field(description="`input.sharding` of the job.")
    num_examples: Count | None = Field(
        None,
        description="Examples of the data set: as it says, or as many as were delivered in an epoch in which no loader "
        "was lost; null: not known.",
    )
    delivered: Count = Field(0, description="Examples that training was given in all epochs.")
    lost: Count = Field(0, description="Examples that it was not given in epochs that are over.")
    ended_epochs: Count = Field(0, description="Number of epochs that are over.")
    epochs: list[DataEpoch] = Field(
        default_factory=list,
        description="The newest 100 epochs, and the newest 1000 of the others in which examples were lost.",
    )
