"""Base class and field types of the job file's sections."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value} is a boolean, expected a number")
    return value


def _require_json(options: dict[str, Any]) -> dict[str, Any]:
    # With each value, the ids of the mappings and lists that it is in.
    waiting: list[tuple[Any, tuple[int, ...]]] = [(options, ())]
    while waiting:
        value, around = waiting.pop()
        if id(value) in around:
            raise ValueError("a mapping or list that contains itself is in it, expected values as JSON has them")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is in it, expected finite numbers")
        if isinstance(value, date | bytes | set):
            shown = str(value) if isinstance(value, date) else repr(value)
            raise ValueError(f"a {type(value).__name__}, {shown}, is in it, expected text (in quotes) or a list")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} is in it, expected text (in quotes) as keys")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        waiting += [(each, (*around, id(value))) for each in inner]
    return options


Real = Annotated[float, Field(strict=False, allow_inf_nan=False), BeforeValidator(_reject_bool)]
"""A finite number. Numeric text is accepted, because YAML 1.1 reads `1e-3` as text."""
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, lt=1)]
Options = Annotated[dict[str, Any], AfterValidator(_require_json)]
"""Keyword arguments of the user's code, as JSON has them, which other processes receive: no NaN, no dates."""
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
MAX_PORT = 65531
"""Of TensorFlow: four ports after it belong to the same process."""


def split_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None if the text is not that, or if no ports follow for the rest."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) <= MAX_PORT else None


class Section(BaseModel):
    """Base class of the job file's sections: immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @classmethod
    def file_fields(cls) -> dict[str, FieldInfo]:
        """The fields by their keys in the file: a key that is a keyword of Python is an alias."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}
