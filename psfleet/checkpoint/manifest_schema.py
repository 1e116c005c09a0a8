"""The schema of a checkpoint's manifest."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.parts import DTYPES
from psfleet.errors import NoCheckpointError

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Spec = tuple[str, tuple[Count, ...], str]
SlotName = Annotated[str, Field(pattern=r"^[^/]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _EmbeddingModel(_Strict):
    """Schema of `EmbeddingSpec.to_dict`."""

    key: str
    name: str
    rows: Positive
    width: Positive
    init: Literal["uniform", "zeros"]
    scale: float
    seed: int
    is_hashed: bool = False


class _LayoutModel(_Strict):
    """Schema of `Layout.to_dict`."""

    num_ps: Positive
    buckets_per_ps: Positive
    parameters: list[Spec]
    state: list[Spec]
    frozen: list[Spec]
    embeddings: Annotated[list[_EmbeddingModel], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> _LayoutModel:
        names: set[str] = set()
        for name, _, dtype in (*self.parameters, *self.state, *self.frozen):
            if name in names:
                raise ValueError(f"tensor {name!r} occurs twice")
            if dtype not in DTYPES:
                raise ValueError(f"tensor {name!r} has dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
            names.add(name)
        for table in self.embeddings or ():
            if table.name in names:
                raise ValueError(f"tensor {table.name!r} occurs twice")
            names.add(table.name)
        for name, _, dtype in self.parameters:
            if dtype != "float32":
                raise ValueError(f"parameter {name!r} has dtype {dtype!r}, expected float32")
        return self


class _PartModel(_Strict):
    """Schema of `PartRecord.to_dict`."""

    file: str
    num_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(_Strict):
    """Schema of the file."""

    format_version: Literal["1"]
    run: str
    step: Count
    generation: Count
    layout_digest: str
    layout: _LayoutModel
    optimizer: str
    slots: list[SlotName]
    parts: list[_PartModel]
    extra: dict[str, Any]


def parsed(folder: Folder, text: bytes) -> Manifest:
    """Validates the text of a manifest; the error names the checkpoint and each invalid field."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'JSON'}: {item['msg']}" for item in error.errors())
        raise NoCheckpointError(f"checkpoint {folder}: manifest.json is invalid: {problems}") from error
