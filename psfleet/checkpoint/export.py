"""Exports the named tensors of a checkpoint to one file: safetensors, Keras weights or a Keras model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import numpy as np

from psfleet.checkpoint import evaluated
from psfleet.checkpoint.deleted import is_deleted, use_found
from psfleet.checkpoint.dense_export import require_memory, write_dense
from psfleet.checkpoint.in_progress import may_be_in_progress
from psfleet.checkpoint.keras_names import Variable, named_variables
from psfleet.checkpoint.location import Folder, recorded_root
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint, read_manifest
from psfleet.checkpoint.model_tensors import require_shapes
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.checkpoint.store import committed_checkpoints, is_checkpoint_name, newest, verify
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.table_specs import require_row_numbers
from psfleet.checkpoint.tensors import read_tensors, table_ranges
from psfleet.errors import UsageError
from psfleet.job.job import parse_job
from psfleet.job.program import KerasProgram, load_program
from psfleet.layout import dense_table

Result = TypeVar("Result")
SAFETENSORS = ".safetensors"
KERAS_WEIGHTS = ".weights.h5"
KERAS_MODEL = ".keras"
KERAS_SUFFIXES = (KERAS_WEIGHTS, KERAS_MODEL)
"""Export formats that need TensorFlow and the program's model."""


class KerasVariable(Variable, Protocol):
    """Interface of `keras.Variable`: shape and assignment."""

    @property
    def shape(self) -> Sequence[int]:
        """The shape of its value."""

    def assign(self, value: np.ndarray) -> object:
        """Sets its value."""


class KerasModel(Protocol):
    """Interface of a built `keras.Model`: variables and saving."""

    @property
    def trainable_variables(self) -> Sequence[KerasVariable]:
        """The variables that the optimizer updates."""

    @property
    def non_trainable_variables(self) -> Sequence[KerasVariable]:
        """All other variables."""

    def save(self, filepath: Path) -> object:
        """Saves the model."""

    def save_weights(self, filepath: Path) -> object:
        """Saves the weights."""


def export(source: Folder, out: Path, best: bool = False, is_live: bool = False) -> int:
    """Writes all parameters, state and frozen tensors of a checkpoint atomically to `out`.

    Args:
        source: The folder of a checkpoint, a run folder, or its `checkpoints` folder, on a disk or in a store. Of the
            last two, the newest valid checkpoint is exported.
        out: `*.safetensors` (without TensorFlow), or `*.weights.h5` or `*.keras` (these build the program's model).
        best: Whether the best checkpoint of a run is exported, by `checkpoint.best` of its job.
        is_live: Whether a run trains there. A newer checkpoint that is not committed yet is then skipped without a
            warning.

    Returns:
        The number of tensors.

    Raises:
        UsageError: There is no checkpoint, no bucket of a store, or no access to it; with `best` none was evaluated;
            the suffix is unknown, `out` cannot be written, or the checkpoint has no Keras model, or one with hashes.
        ProgramError: The program cannot be loaded, or does not build its model.
        NoCheckpointError: There are checkpoints, but none is valid.
        BadJobError: The variables of the program's model differ from the checkpoint's.
    """
    if not out.name.endswith((SAFETENSORS, *KERAS_SUFFIXES)):
        raise UsageError(f"--out {out}: expected a name that ends in {SAFETENSORS}, {KERAS_WEIGHTS} or {KERAS_MODEL}")
    if not out.parent.is_dir() or out.is_dir():
        raise UsageError(f"--out {out}: expected a file in a folder that exists")

    def chosen() -> Checkpoint:
        try:
            return find_best(source) if best else find(source, is_live)
        except StoreError as error:
            raise UsageError(str(error)) if error.is_denied else error from error

    return use_found(chosen, lambda checkpoint: _export(checkpoint, out), lambda each: is_deleted(each, source))


def _export(checkpoint: Checkpoint, out: Path) -> int:
    if out.name.endswith(SAFETENSORS):
        return export_safetensors(checkpoint, out)
    if out.name.endswith(KERAS_MODEL):
        require_row_numbers(checkpoint, f"--out {out}")
    require_memory(checkpoint, out, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return export_keras(checkpoint, out, built_model_of(checkpoint))


def find(source: Folder, is_live: bool = False) -> Checkpoint:
    """Finds and verifies the checkpoint that `source` of `export` names; arguments as there.

    Raises:
        UsageError: There is no checkpoint.
        NoCheckpointError: There are checkpoints, but none is valid.
    """
    if (source / MANIFEST).is_file() or (is_checkpoint_name(source.resolve().name) and source.is_dir()):
        checkpoint = read_manifest(source)
        verify(checkpoint)
        return checkpoint
    found = newest(root_of_run(source), lambda folder: is_live or may_be_in_progress(folder))
    if found is None:
        raise no_checkpoint(source)
    return found


def find_best(source: Folder) -> Checkpoint:
    """Resolves and verifies the best checkpoint of a run, by `checkpoint.best` of the job that trained it last."""
    root = root_of_run(source)
    checkpoints = list(committed_checkpoints(root))
    if not checkpoints:
        raise no_checkpoint(source)
    content = checkpoints[0].job
    watched = None if content is None else parse_job(content, f"job of {root}").checkpoint.best
    if watched is None:
        raise UsageError(f"--best: the job of {source} has no checkpoint.best, by which one would be the best")
    found = evaluated.best(evaluated.evaluated(checkpoints), watched)
    if found is None:
        raise UsageError(f"--best: no checkpoint of {source} was evaluated with a finite {watched.metric}")
    verify(found.checkpoint)
    return found.checkpoint


def root_of_run(source: Folder) -> Folder:
    """The folder of checkpoints of a run folder or of a store, or the folder itself."""
    root = recorded_root(source)
    return root if (isinstance(source, Path) and not isinstance(root, Path)) or root.is_dir() else source


def no_checkpoint(source: Folder) -> UsageError:
    """The error for a place without checkpoints."""
    return UsageError(f"{source}: no checkpoint there, expected a run folder, its checkpoints folder or a checkpoint")


def export_safetensors(checkpoint: Checkpoint, out: Path) -> int:
    """Writes the named tensors as safetensors.

    Returns:
        The number of tensors.

    Raises:
        UsageError: `out` cannot be written.
    """
    return _write(out, lambda path: write_dense(checkpoint, path))


def export_keras(checkpoint: Checkpoint, out: Path, model: KerasModel) -> int:
    """Assigns the named tensors to a built model and saves it, or only its weights if `out` ends in `.weights.h5`.

    Keras does not save the state of seed generators, so that of dropout is not exported.

    Returns:
        The number of tensors.

    Raises:
        BadJobError: The model's variables differ from the checkpoint's; names one of them and both shapes.
        UsageError: `out` cannot be written.
    """
    number = assign(checkpoint, model)
    _write(out, model.save_weights if out.name.endswith(KERAS_WEIGHTS) else model.save)
    return number


def assign(checkpoint: Checkpoint, model: KerasModel) -> int:
    """Assigns the named tensors to a built model.

    Returns:
        The number of tensors.

    Raises:
        BadJobError: The model's variables differ from the checkpoint's; names one of them and both shapes.
    """
    tensors = read_tensors(checkpoint)
    tables = {table.name: table for table in checkpoint.layout.embeddings}
    saved = {name: list(tensor.shape) for name, tensor in tensors.items()}
    saved |= {name: [table.rows, table.width] for name, table in tables.items()}
    named = named_variables(model)
    built = {name: list(variable.shape) for name, variable in named.items()}
    require_shapes(f"checkpoint {checkpoint.folder}", saved, built)
    for name, variable in named.items():
        is_table = name in tables
        variable.assign(
            dense_table(tables[name], table_ranges(checkpoint, tables[name])) if is_table else tensors[name]
        )
    return len(saved)


def built_model_of(checkpoint: Checkpoint, otherwise: str = f"--out *{SAFETENSORS}") -> Any:
    """Builds the model of the program that wrote the checkpoint: a `keras.Model`.

    Args:
        otherwise: What is expected of the caller, for the error if there is no Keras model.

    Raises:
        UsageError: The checkpoint records no program, or one without a Keras model.
        ProgramError: The program cannot be loaded, or does not build its model.
    """
    job, folder = recorded_program(checkpoint, otherwise)
    program = load_program(job, folder)
    if not isinstance(program, KerasProgram):
        raise UsageError(f"program {job.program} has no Keras model, expected {otherwise}")
    # Imported here because it loads TensorFlow, which the export to safetensors does not need.
    from psfleet.tf.program_data import built_model

    return built_model(program, job)


def _write(out: Path, save: Callable[[Path], Result]) -> Result:
    """Saves atomically, by a rename from a file with the same name in a new folder, which only this user can enter."""
    try:
        with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
            temporary = Path(folder, out.name)
            result = save(temporary)
            temporary.replace(out)
            return result
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
