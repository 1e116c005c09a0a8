"""The manifest of a checkpoint, which is written last and thereby commits the checkpoint: its schema and its checks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from psfleet.checkpoint.parts import DTYPES, FORMAT, PartRecord, part_name, sync_folder, vector_layouts
from psfleet.errors import NoCheckpointError
from psfleet.layout import Layout

MANIFEST = "manifest.json"
FOLDER_PATTERN = re.compile(r"(\d{8,})-g(\d+)", re.ASCII)
"""Name of a checkpoint's folder: step and generation."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: the content of its manifest, after a check of the parts' names and sizes."""

    folder: Path
    run: str
    step: int
    generation: int
    layout: Layout
    optimizer: str
    slots: tuple[str, ...]
    parts: tuple[PartRecord, ...]
    extra: dict[str, Any]
    """JSON values of the writer: versions, the job."""

    @property
    def job(self) -> dict[str, Any] | None:
        """The job that wrote it, as `Job.model_dump(mode="json")` gave it; None if it is not recorded."""
        job = self.extra.get("job")
        return job if isinstance(job, dict) else None


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Spec = tuple[str, tuple[Count, ...], str]
SlotName = Annotated[str, Field(pattern=r"^[^/]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LayoutModel(_Strict):
    """Schema of `Layout.to_dict`."""

    num_ps: Positive
    buckets_per_ps: Positive
    parameters: list[Spec]
    state: list[Spec]
    frozen: list[Spec]

    @model_validator(mode="after")
    def _consistent(self) -> _LayoutModel:
        names: set[str] = set()
        for name, _, dtype in (*self.parameters, *self.state, *self.frozen):
            if name in names:
                raise ValueError(f"tensor {name!r} occurs twice")
            if dtype not in DTYPES:
                raise ValueError(f"tensor {name!r} has dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
            names.add(name)
        for name, _, dtype in self.parameters:
            if dtype != "float32":
                raise ValueError(f"parameter {name!r} has dtype {dtype!r}, expected float32")
        return self


class _PartModel(_Strict):
    """Schema of `PartRecord.to_dict`."""

    file: str
    num_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Manifest(_Strict):
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


def checkpoint_folder(root: Path, step: int, generation: int) -> Path:
    """The folder of the checkpoint of a step and generation."""
    return root / f"{step:08d}-g{generation}"


def write_manifest(
    folder: Path,
    layout: Layout,
    parts: Sequence[PartRecord],
    *,
    run: str,
    step: int,
    generation: int,
    optimizer: str,
    slots: Sequence[str],
    extra: dict[str, Any],
) -> Checkpoint:
    """Commits the checkpoint in `folder`, with all `parts` in any order, and flushes it to the disk.

    Args:
        extra: JSON values to be stored, see `Checkpoint.extra`; the other arguments are fields of `Checkpoint`, too.

    Raises:
        NoCheckpointError: A part is missing, or its size differs from its record.
        OSError: The manifest cannot be written.
        TypeError, ValueError: `extra` cannot be represented as JSON.
    """
    layout = layout.saved
    order = {part_name(shard, layout.num_ps): shard for shard in range(layout.num_ps)}
    records = tuple(sorted(parts, key=lambda part: order.get(part.file, layout.num_ps)))
    checkpoint = Checkpoint(folder, run, step, generation, layout, optimizer, tuple(slots), records, extra)
    content = {
        "format_version": FORMAT,
        "run": run,
        "step": step,
        "generation": generation,
        "layout_digest": layout.digest(),
        "layout": layout.to_dict(),
        "optimizer": optimizer,
        "slots": list(slots),
        "parts": [part.to_dict() for part in records],
        "extra": extra,
    }
    text = json.dumps(content, indent=1, allow_nan=False)
    _parse(folder, text.encode())
    _check_files(checkpoint)
    _write(folder, text)
    return checkpoint


def read_manifest(folder: Path) -> Checkpoint:
    """Reads the manifest of a checkpoint's folder, and checks the names and sizes of its parts.

    Raises:
        NoCheckpointError: The manifest is missing or invalid, or a part is missing or truncated; names the folder.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise NoCheckpointError(f"checkpoint {folder} has no {MANIFEST}: it was never committed") from error
    except OSError as error:
        raise NoCheckpointError(f"checkpoint {folder}: {MANIFEST} cannot be read: {error.strerror or error}") from error
    manifest = _parse(folder, text)
    layout = Layout.from_dict(manifest.layout.model_dump())
    if layout.digest() != manifest.layout_digest:
        raise NoCheckpointError(
            f"checkpoint {folder}: layout_digest is {manifest.layout_digest!r}, expected {layout.digest()!r}"
        )
    checkpoint = Checkpoint(
        folder=folder,
        run=manifest.run,
        step=manifest.step,
        generation=manifest.generation,
        layout=layout,
        optimizer=manifest.optimizer,
        slots=tuple(manifest.slots),
        parts=tuple(PartRecord(part.file, part.num_bytes, part.sha256) for part in manifest.parts),
        extra=manifest.extra,
    )
    named = FOLDER_PATTERN.fullmatch(folder.name)
    if named and (int(named[1]), int(named[2])) != (manifest.step, manifest.generation):
        found = f"step {manifest.step} of generation {manifest.generation}"
        raise NoCheckpointError(f"checkpoint {folder}: the manifest is of {found}")
    _check_files(checkpoint)
    return checkpoint


def _write(folder: Path, text: str) -> None:
    """Writes the manifest atomically, and flushes it and its folders to the disk."""
    temporary = folder / f".{MANIFEST}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / MANIFEST)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    sync_folder(folder.parent)


def _parse(folder: Path, text: bytes) -> _Manifest:
    """Validates the text of a manifest; the error names the checkpoint and each invalid field."""
    try:
        return _Manifest.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'JSON'}: {item['msg']}" for item in error.errors())
        raise NoCheckpointError(f"checkpoint {folder}: {MANIFEST} is invalid: {problems}") from error


def _check_files(checkpoint: Checkpoint) -> None:
    """Checks the parts' names, which thereby cannot point outside the folder, and their sizes.

    Raises:
        NoCheckpointError: A part's name or size is wrong, or all parts together are smaller than the layout's tensors.
    """
    folder, layout = checkpoint.folder, checkpoint.layout
    if len(checkpoint.parts) != layout.num_ps:
        raise NoCheckpointError(f"checkpoint {folder} has {len(checkpoint.parts)} parts, expected {layout.num_ps}")
    for shard, part in enumerate(checkpoint.parts):
        expected = part_name(shard, layout.num_ps)
        if part.file != expected:
            raise NoCheckpointError(f"checkpoint {folder} has a part named {part.file!r}, expected {expected!r}")
        try:
            size = (folder / expected).stat().st_size
        except OSError as error:
            raise NoCheckpointError(f"checkpoint {folder}: {expected}: {error.strerror or error}") from error
        if size != part.num_bytes:
            raise NoCheckpointError(f"checkpoint {folder}: {expected} has {size} bytes, expected {part.num_bytes}")
    held = sum(part.num_bytes for part in checkpoint.parts)
    needed = sum(spec.num_bytes for flat in vector_layouts(layout, checkpoint.slots).values() for spec in flat.specs)
    if held < needed:
        raise NoCheckpointError(f"checkpoint {folder} has {held} bytes, expected at least {needed} for its layout")
