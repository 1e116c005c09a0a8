"""Base class and types of the fields of all records of a run."""

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
