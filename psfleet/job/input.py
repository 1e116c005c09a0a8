"""The job file's `input` section: where training examples are read, and how they become batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from psfleet.job.fields import PositiveInt, Section


class Input(Section):
    """Where training examples are read, and how they become batches."""

    model_config = ConfigDict(serialize_by_alias=True)

    source: Literal["worker", "preload"] = Field(
        "worker",
        alias="from",
        description="worker: a worker reads its data set in every epoch; preload: it reads its shard once, before its "
        "first batch, and keeps it in its memory; see [above](#data-in-memory).",
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

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        boundaries = self.bucket_boundaries
        if boundaries is None:
            return self
        if not self.pad:
            raise ValueError(f"bucket_boundaries is {boundaries}, expected null without pad: true")
        if any(first >= second for first, second in pairwise(boundaries)):
            raise ValueError(f"bucket_boundaries is {boundaries}, expected numbers that increase")
        return self
