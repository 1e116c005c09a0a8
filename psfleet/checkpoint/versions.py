"""Exports a Keras model as a version: a folder named by its step, as TensorFlow Serving expects it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from psfleet.checkpoint import export, store
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import NoCheckpointError, UsageError

SAVED_MODEL = "saved_model"
KERAS = "keras"
LITERT = "litert"
FORMATS = (SAVED_MODEL, KERAS, LITERT)
KERAS_FILE = "model.keras"
LITERT_FILE = "model.tflite"


class Request(BaseModel):
    """What `python -m worker_service.export` reads on standard input.

    Attributes:
        checkpoint: Path or URL of its folder.
        kind: One of `FORMATS`.
        calibrate: Number of training examples with which the int8 model is calibrated; None: the model is float.
        max_loss: By how much the main metric may be worse than that of the float model; None: by any amount.
    """

    model_config = ConfigDict(extra="forbid")

    checkpoint: str
    kind: str
    calibrate: int | None = None
    max_loss: float | None = None


@dataclass(frozen=True)
class Version:
    """A version of a model.

    Attributes:
        folder: `OUT/STEP`.
        num_bytes: Of all its files.
        summary: What `write` of `export_version` has returned.
    """

    folder: Path
    step: int
    num_bytes: int
    summary: str


def find(source: Folder, step: int | None = None, best: bool = False, is_live: bool = False) -> Checkpoint:
    """Finds and verifies a checkpoint: the newest valid one, that of a step, or the best one.

    Args:
        source, best, is_live: As of `psfleet.checkpoint.export.export`.
        step: Of the checkpoint; None: the newest or the best one.

    Raises:
        UsageError: There is none of that step, no best one, or no access to the store.
        NoCheckpointError: There is no checkpoint, or none is valid.
    """
    if best and step is not None:
        raise UsageError(f"--step {step} and --best exclude each other, expected one of them")
    try:
        if not best and step is None:
            return _newest(source, is_live)
        checkpoints = list(store.committed_checkpoints(export.root_of_run(source)))
        if not checkpoints:
            raise NoCheckpointError(str(export.no_checkpoint(source)))
        return export.find_best(source) if step is None else _of_step(source, checkpoints, step)
    except StoreError as error:
        raise UsageError(str(error)) if error.is_denied else error from error


def export_version(checkpoint: Checkpoint, out: Path, write: Callable[[Path], str]) -> Version:
    """Has the model of a checkpoint written as `out/STEP`, which appears with all its files at once.

    Args:
        out: Has the versions of one model in one format. Made if it is missing; without a version it does not stay.
        write: Writes the files of the version into a folder, and returns a summary.

    Raises:
        UsageError: The version exists already, or `out` cannot be written.
    """
    folder = out / str(checkpoint.step)
    exists = UsageError(f"--out {out}: version {checkpoint.step} exists, expected another folder, or another --step")
    if folder.exists():
        raise exists
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A hidden name, which is no number and thus no version.
        temporary = Path(tempfile.mkdtemp(prefix=f".{checkpoint.step}-", dir=out))
        try:
            built = temporary / "version"
            # Its mode is that of the user; that of the folder around it keeps a server of another user out.
            built.mkdir()
            summary = write(built)
            if folder.exists():
                raise exists
            # A folder that another export writes now is not empty, and stays.
            os.rename(built, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if is_new:
                # It stays if it has a version.
                with suppress(OSError):
                    out.rmdir()
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Version(folder, checkpoint.step, num_bytes, summary)


def _newest(source: Folder, is_live: bool) -> Checkpoint:
    try:
        return export.find(source, is_live)
    except UsageError as error:
        raise NoCheckpointError(str(error)) from error


def _of_step(source: Folder, checkpoints: list[Checkpoint], step: int) -> Checkpoint:
    """Verifies the newest of the checkpoints of a step."""
    found = max((each for each in checkpoints if each.step == step), key=lambda each: each.generation, default=None)
    if found is None:
        steps = ", ".join(map(str, sorted({each.step for each in checkpoints})))
        raise UsageError(f"--step {step}: {source} has no checkpoint of that step, expected one of {steps}")
    store.verify(found)
    return found
