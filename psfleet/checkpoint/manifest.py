"""The manifest of a checkpoint, which is written last and thereby commits the checkpoint: writing, reading, checks."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest_schema import parsed
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.parts import FORMAT, PartRecord, part_name, sync_folder, vector_layouts
from psfleet.checkpoint.read_errors import read_error
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import NoCheckpointError
from psfleet.layout import Layout

MANIFEST = "manifest.json"
ABANDONED = b'{"abandoned": true}'
"""In place of a manifest in a store: a recovery restored an earlier step, and this one must not be committed."""
FOLDER_PATTERN = re.compile(r"(\d{8,})-g(\d+)", re.ASCII)
"""Name of a checkpoint's folder: step and generation."""


class UncommittedError(NoCheckpointError):
    """A folder has parts of a checkpoint that was never committed, or was abandoned."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: the content of its manifest, after a check of the parts' names and sizes."""

    folder: Folder
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


def checkpoint_name(step: int, generation: int) -> str:
    """The name of the folder of the checkpoint of a step and generation."""
    return f"{step:08d}-g{generation}"


def checkpoint_folder(root: Folder, step: int, generation: int) -> Folder:
    """The folder of the checkpoint of a step and generation."""
    return root / checkpoint_name(step, generation)


def write_manifest(
    folder: Folder,
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

    In a store no manifest is ever replaced: a chief that was frozen cannot change that of another one.

    Args:
        extra: JSON values to be stored, see `Checkpoint.extra`; the other arguments are fields of `Checkpoint`, too.

    Raises:
        NoCheckpointError: A part is missing, or its size differs from its record; or the checkpoint was abandoned.
        OSError: The manifest cannot be written, or a store has another one.
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
    parsed(folder, text.encode())
    _check_files(checkpoint)
    if isinstance(folder, StoreFolder):
        _create(folder, text, checkpoint)
    else:
        _write(folder, text)
    return checkpoint


def read_manifest(folder: Folder) -> Checkpoint:
    """Reads the manifest of a checkpoint's folder, and checks the names and sizes of its parts.

    Raises:
        UncommittedError: There is no manifest; names the folder.
        NoCheckpointError: The manifest is invalid, or a part is missing or truncated; names the folder.
        StoreError: A store did not give it: whether it is valid is not known.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise UncommittedError(f"checkpoint {folder} has no {MANIFEST}: it was never committed") from error
    except StoreError:
        raise
    except OSError as error:
        raise read_error(f"checkpoint {folder}: {MANIFEST}", error) from error
    if text == ABANDONED:
        raise UncommittedError(f"checkpoint {folder} was never committed: a recovery restored an earlier step")
    manifest = parsed(folder, text)
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


def abandon(folder: StoreFolder) -> bool:
    """Keeps a chief that is late from committing the checkpoint of a folder.

    Returns:
        False: The checkpoint is committed.
    """
    try:
        (folder / MANIFEST).create(ABANDONED)
    except FileExistsError:
        return (folder / MANIFEST).read_bytes() == ABANDONED
    return True


def _create(folder: StoreFolder, text: str, checkpoint: Checkpoint) -> None:
    """Writes the manifest to a store, unless it is there: of a request that was repeated, or of the chief before.

    Raises:
        UncommittedError: The checkpoint was abandoned.
        OSError: That one has other parts.
    """
    try:
        (folder / MANIFEST).create(text.encode())
    except FileExistsError as error:
        if read_manifest(folder).parts != checkpoint.parts:
            raise StoreError(str(folder / MANIFEST), "another run has written it with other parts") from error


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


def _check_files(checkpoint: Checkpoint) -> None:
    """Checks the parts' names, which thereby cannot point outside the folder, and their sizes.

    Raises:
        NoCheckpointError: A part's name or size is wrong, or all parts together are smaller than the layout's tensors.
    """
    folder, layout = checkpoint.folder, checkpoint.layout
    if len(checkpoint.parts) != layout.num_ps:
        raise NoCheckpointError(f"checkpoint {folder} has {len(checkpoint.parts)} parts, expected {layout.num_ps}")
    size_of = _sizes(folder)
    for shard, part in enumerate(checkpoint.parts):
        expected = part_name(shard, layout.num_ps)
        if part.file != expected:
            raise NoCheckpointError(f"checkpoint {folder} has a part named {part.file!r}, expected {expected!r}")
        size = size_of(expected)
        if size != part.num_bytes:
            raise NoCheckpointError(f"checkpoint {folder}: {expected} has {size} bytes, expected {part.num_bytes}")
    held = sum(part.num_bytes for part in checkpoint.parts)
    needed = sum(spec.num_bytes for flat in vector_layouts(layout, checkpoint.slots).values() for spec in flat.specs)
    if held < needed:
        raise NoCheckpointError(f"checkpoint {folder} has {held} bytes, expected at least {needed} for its layout")


def _sizes(folder: Folder) -> Callable[[str], int]:
    """A function that returns the size of a file in a folder, in bytes; a store is asked once for all of them.

    Raises:
        NoCheckpointError: By the function: there is no such file.
    """
    sizes = folder.sizes() if isinstance(folder, StoreFolder) else {}

    def size_of(name: str) -> int:
        try:
            return sizes[name] if isinstance(folder, StoreFolder) else (folder / name).stat().st_size
        except KeyError as error:
            raise NoCheckpointError(f"checkpoint {folder}: {name}: {os.strerror(errno.ENOENT)}") from error
        except FileNotFoundError as error:
            raise NoCheckpointError(f"checkpoint {folder}: {name}: {error.strerror}") from error
        except OSError as error:
            raise read_error(f"checkpoint {folder}: {name}", error) from error

    return size_of
