"""What every section of the job file is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value} is a truth value, expected a number")
    return value


Real = Annotated[float, Field(strict=False, allow_inf_nan=False), BeforeValidator(_no_truth_value)]
"""A finite number; YAML 1.1 reads `1e-3` as text, so text that is a number is taken too."""
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A part of the job file: unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
