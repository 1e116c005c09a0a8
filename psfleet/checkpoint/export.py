"""Exports the named tensors of a checkpoint to one file: safetensors, Keras weights or a whole Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.numpy

from psfleet.checkpoint.keras_names import Variable, keras_names
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint, read_manifest
from psfleet.checkpoint.store import is_checkpoint_name, newest, verify
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import parse_job
from psfleet.job.program import KerasProgram, load_program

SAFETENSORS = ".safetensors"
KERAS_WEIGHTS = ".weights.h5"
KERAS_MODEL = ".keras"
KERAS_SUFFIXES = (KERAS_WEIGHTS, KERAS_MODEL)
"""Files that TensorFlow and the program's model are needed for."""


class KerasVariable(Variable, Protocol):
    """The part of `keras.Variable` that takes a value."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""

    def assign(self, value: np.ndarray) -> object:
        """Sets it."""


class KerasModel(Protocol):
    """The part of a built `keras.Model` that takes weights and is saved."""

    @property
    def trainable_variables(self) -> Sequence[KerasVariable]:
        """What training changes."""

    @property
    def non_trainable_variables(self) -> Sequence[KerasVariable]:
        """All others."""

    def save(self, filepath: Path) -> object:
        """Writes the model."""

    def save_weights(self, filepath: Path) -> object:
        """Writes the weights."""


def export(source: Path, out: Path) -> int:
    """Writes all parameters, state and frozen tensors of a checkpoint to `out`, which appears whole or not at all.

    Args:
        source: A run's folder, its `checkpoints` folder (of both the newest whole one is taken), or one checkpoint.
        out: `*.safetensors` (needs no TensorFlow), or `*.weights.h5` or `*.keras` (build the model of the program).

    Returns:
        The number of tensors.

    Raises:
        UsageError: There is no checkpoint, the suffix is another one, `out` cannot be written, or the checkpoint
            names no program or one without a Keras model.
        ProgramError: The program cannot be loaded, or does not build its model.
        NoCheckpointError: There are checkpoints, but none is whole.
        BadJobError: The program's model is not that of the checkpoint.
    """
    if not out.name.endswith((SAFETENSORS, *KERAS_SUFFIXES)):
        raise UsageError(f"--out {out}: expected a name that ends in {SAFETENSORS}, {KERAS_WEIGHTS} or {KERAS_MODEL}")
    if not out.parent.is_dir() or out.is_dir():
        raise UsageError(f"--out {out}: expected a file in a folder that exists")
    checkpoint = find(source)
    if out.name.endswith(SAFETENSORS):
        return export_safetensors(checkpoint, out)
    return export_keras(checkpoint, out, _model(checkpoint))


def find(source: Path) -> Checkpoint:
    """The checkpoint that a path means; see `export`."""
    if (source / MANIFEST).is_file() or (is_checkpoint_name(source.resolve().name) and source.is_dir()):
        checkpoint = read_manifest(source)
        verify(checkpoint)
        return checkpoint
    root = source / "checkpoints"
    found = newest(root if root.is_dir() else source)
    if found is None:
        raise UsageError(f"{source}: no checkpoint there")
    return found


def export_safetensors(checkpoint: Checkpoint, out: Path) -> int:
    """Writes the named tensors; returns their number. `UsageError` if `out` cannot be written."""
    tensors = read_tensors(checkpoint)
    metadata = {"run": checkpoint.run, "step": str(checkpoint.step)}
    content = safetensors.numpy.save(tensors, metadata)
    _write(out, lambda path: path.write_bytes(content))
    return len(tensors)


def export_keras(checkpoint: Checkpoint, out: Path, model: KerasModel) -> int:
    """Assigns the named tensors to a built model and saves it, or its weights only if `out` ends in `.weights.h5`.

    Keras itself leaves the seeds of dropout out of its files.

    Returns:
        The number of tensors.

    Raises:
        BadJobError: The model's variables are not those of the checkpoint; names one and both shapes.
        UsageError: `out` cannot be written.
    """
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    named = dict(zip(keras_names(variables), variables, strict=True))
    tensors = read_tensors(checkpoint)
    _check_shapes(checkpoint, tensors, named)
    for name, variable in named.items():
        variable.assign(tensors[name])
    _write(out, model.save_weights if out.name.endswith(KERAS_WEIGHTS) else model.save)
    return len(tensors)


def _check_shapes(
    checkpoint: Checkpoint, tensors: Mapping[str, np.ndarray], named: Mapping[str, KerasVariable]
) -> None:
    saved = {name: list(tensor.shape) for name, tensor in tensors.items()}
    built = {name: list(variable.shape) for name, variable in named.items()}
    for name in sorted({*saved, *built}):
        if saved.get(name) != built.get(name):
            raise BadJobError(
                f"tensor {name!r} is {saved.get(name, 'missing')} in checkpoint {checkpoint.folder} and "
                f"{built.get(name, 'missing')} in the program's model"
            )


def _model(checkpoint: Checkpoint) -> KerasModel:
    """The model of the program that the checkpoint was trained with."""
    content, folder = checkpoint.extra.get("job"), checkpoint.extra.get("program_folder")
    if not isinstance(content, dict) or not isinstance(folder, str):
        raise UsageError(f"checkpoint {checkpoint.folder} names no program, so only *{SAFETENSORS} can be written")
    job = parse_job(content, source=f"job of checkpoint {checkpoint.folder}")
    program = load_program(job, Path(folder))
    if not isinstance(program, KerasProgram):
        raise UsageError(f"program {job.program} has no Keras model, so only *{SAFETENSORS} can be written")
    # Imports TensorFlow and Keras, which `*.safetensors` needs neither of.
    from psfleet.tf.program_data import built_model

    model: KerasModel = built_model(program, job)
    return model


def _write(out: Path, save: Callable[[Path], object]) -> None:
    """Saves under another name with the same suffix first."""
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        save(temporary)
        temporary.replace(out)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
