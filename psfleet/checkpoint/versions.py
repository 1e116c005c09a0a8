"""Exports a Keras model as a version: a folder named by its step, as TensorFlow Serving expects it."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.checkpoint import export, store
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import UsageError

SAVED_MODEL = "saved_model"
KERAS = "keras"
FORMATS = (SAVED_MODEL, KERAS)
KERAS_FILE = "model.keras"


@dataclass(frozen=True)
class Version:
    """A version of a model.

    Attributes:
        folder: `OUT/STEP`.
        num_bytes: Of all its files.
    """

    folder: Path
    step: int
    num_bytes: int


def export_version(source: Folder, out: Path, kind: str, step: int | None = None, is_live: bool = False) -> Version:
    """Writes the model of a checkpoint with its weights into `out/STEP`, which appears with all its files at once.

    Tables have all their rows. Keras does not save the state of seed generators.

    Args:
        source, is_live: As of `psfleet.checkpoint.export.export`.
        out: Made if it is missing; has the versions of one model in one format.
        kind: One of `FORMATS`: `OUT/STEP/saved_model.pb` with variables, or `OUT/STEP/model.keras`.
        step: Of the checkpoint; None: the newest valid one.

    Raises:
        UsageError: There is no checkpoint, or none of that step; the format is unknown; the version exists already;
            `out` cannot be written, or the checkpoint records no program or one without a Keras model.
        ProgramError: The program cannot be loaded, or does not build its model.
        NoCheckpointError: There are checkpoints, but none is valid.
        BadJobError: The variables of the program's model differ from the checkpoint's.
    """
    if kind not in FORMATS:
        raise UsageError(f"--format {kind}: expected one of {', '.join(FORMATS)}")
    try:
        checkpoint = export.find(source, is_live) if step is None else _find_step(source, step)
    except StoreError as error:
        raise UsageError(str(error)) if error.is_denied else error from error
    folder = out / str(checkpoint.step)
    if folder.exists():
        raise UsageError(f"--out {out}: version {checkpoint.step} exists, expected another folder, or another --step")
    model = export.built_model_of(checkpoint, "a KerasProgram")
    export.assign(checkpoint, model)
    try:
        _write(checkpoint, model, folder, kind)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return Version(folder, checkpoint.step, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _find_step(source: Folder, step: int) -> Checkpoint:
    """Finds and verifies the newest checkpoint of a step of a run.

    Raises:
        UsageError: There is no checkpoint of that step; names those there are.
        NoCheckpointError: It is corrupt.
    """
    checkpoints = list(store.committed_checkpoints(export.root_of_run(source)))
    if not checkpoints:
        raise export.no_checkpoint(source)
    found = max((each for each in checkpoints if each.step == step), key=lambda each: each.generation, default=None)
    if found is None:
        steps = ", ".join(map(str, sorted({each.step for each in checkpoints})))
        raise UsageError(f"--step {step}: {source} has no checkpoint of that step, expected one of {steps}")
    store.verify(found)
    return found


def _write(checkpoint: Checkpoint, model: Any, folder: Path, kind: str) -> None:
    """Saves below a hidden folder, whose name is no number and thus no version, and renames."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{checkpoint.step}-", dir=folder.parent))
    try:
        built = temporary / "version"
        # Its mode is that of the user; that of the folder around it keeps a server of another user out.
        built.mkdir()
        if kind == KERAS:
            model.save(built / KERAS_FILE)
        else:
            model.export(built, format="tf_saved_model", verbose=False)
        # A folder that another export has written meanwhile is not empty, and stays.
        os.rename(built, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
