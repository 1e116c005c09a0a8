"""Base class and field types of the job file's sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value} is a boolean, expected a number")
    return value


Real = Annotated[float, Field(strict=False, allow_inf_nan=False), BeforeValidator(_reject_bool)]
"""A finite number. Numeric text is accepted, because YAML 1.1 reads `1e-3` as text."""
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]


def split_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None if the text is not that, or if no port follows for the control plane."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) < 65535 else None


class Section(BaseModel):
    """Base class of the job file's sections: immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
