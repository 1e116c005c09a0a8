"""The job file's `input` section: where training examples are read, and how they become batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from psfleet.job.fields import PositiveInt, Section
from psfleet.job.fleet import Fleet


class Input(Section):
    """Where training examples are read, and how they become batches."""

    model_config = ConfigDict(serialize_by_alias=True)

    source: Literal["worker", "preload", "loaders"] = Field(
        "worker",
        alias="from",
        description="worker: a worker reads its data set in every epoch; preload: it reads its shard once, before its "
        "first batch, and keeps it in its memory; see [above](#data-in-memory). loaders: processes of their own read; "
        "see [above](#loaders).",
    )
    loaders: PositiveInt = Field(
        1, description="With `from: loaders`: number of loaders, at most that of workers and spares."
    )
    sharding: Literal["static", "dynamic"] = Field(
        "static",
        description="With `from: loaders`. static: the batches of a worker are a function of `train.seed` and its "
        "index; dynamic: a loader gives each batch to the worker that asks first; see [above](#dynamic-sharding).",
    )

    pad: bool = Field(
        False,
        description="Whether examples of unequal sizes are padded to the largest of their batch, with 0, false or "
        "empty text: tensors whose shape in the data set has `None`; see [above](#examples-of-unequal-length).",
    )
    bucket_boundaries: list[PositiveInt] | None = Field(
        None,
        min_length=1,
        description="With `pad`: batches are of examples of similar length, the largest of an example's sizes that "
        "are `None` in the shapes. One bucket has the lengths below the first number, one those from the last number "
        "on, and the others those between two numbers. null: a batch has examples of any length.",
    )

    @property
    def num_loaders(self) -> int:
        """Number of loaders that the launcher starts."""
        return self.loaders if self.source == "loaders" else 0

    @property
    def is_dynamic(self) -> bool:
        """Whether loaders give their batches to the worker that asks first."""
        return self.sharding == "dynamic"

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        if self.loaders > 1 and self.source != "loaders":
            raise ValueError(f"loaders is {self.loaders}, expected 1 without from: loaders")
        boundaries = self.bucket_boundaries
        if self.is_dynamic and self.source != "loaders":
            raise ValueError("sharding is dynamic, expected static without from: loaders")
        if self.is_dynamic and boundaries is not None:
            raise ValueError(f"bucket_boundaries is {boundaries}, expected null with sharding: dynamic")
        if boundaries is None:
            return self
        if not self.pad:
            raise ValueError(f"bucket_boundaries is {boundaries}, expected null without pad: true")
        if any(first >= second for first, second in pairwise(boundaries)):
            raise ValueError(f"bucket_boundaries is {boundaries}, expected numbers that increase")
        return self


def require_loaders(section: Input, fleet: Fleet, is_in_graph: bool) -> None:
    """Raises ValueError if a job has loaders that its fleet cannot have."""
    if not section.num_loaders:
        return
    if section.loaders > fleet.processes:
        raise ValueError(
            f"input.loaders is {section.loaders}, expected at most fleet.workers + fleet.spares = {fleet.processes}: "
            "each worker reads from one loader"
        )
    for field, value, is_refused in (
        ("update.replication", "in_graph", is_in_graph),
        ("fleet.parts", fleet.parts, fleet.parts > 1),
    ):
        if is_refused:
            raise ValueError(f"input.from is loaders, expected worker or preload: {field} is {value}")
