"""`python -m worker_service.export`: writes the Keras model of a checkpoint, loads it, and compares its predictions.

Reads a `psfleet.checkpoint.versions.Request` on standard input, and writes a `Verdict` to a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.models.functional import Functional

from psfleet.checkpoint import export, versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import read_manifest
from psfleet.errors import ProgramError, PsfleetError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import KerasProgram, load_program
from psfleet.job.user_code import failure, user_code
from psfleet.report.verdict import Verdict
from psfleet.tf.program_data import built_model, first_batch

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Of the predictions of a model that was loaded: another graph may add numbers in another order."""


def write(request: versions.Request, folder: Path) -> str:
    """Writes the files of a version into a folder that exists, and verifies them.

    Returns:
        What was verified, in one line.

    Raises:
        UsageError: The checkpoint records no program, or one whose model cannot be exported; the disk is full.
        ProgramError: The program failed, its model cannot be saved or loaded, or predicts other values then.
        BadJobError: The variables of the program's model differ from the checkpoint's.
    """
    checkpoint = read_manifest(parse(request.checkpoint))
    content, program_folder = checkpoint.job, checkpoint.extra.get("program_folder")
    if content is None or not isinstance(program_folder, str):
        raise UsageError(f"checkpoint {checkpoint.folder} names no program, expected a KerasProgram")
    job = parse_job(content, source=f"job of checkpoint {checkpoint.folder}")
    hashed = [name for name, table in job.tables.items() if table.hash]
    if hashed:
        raise UsageError(f"tables.{hashed[0]}.hash is true, which no Keras model has, expected tables without hash")
    program = load_program(job, Path(program_folder))
    if not isinstance(program, KerasProgram):
        raise UsageError(f"program {job.program} has no Keras model, expected a KerasProgram")
    model = built_model(program, job)
    export.assign(checkpoint, model)
    x = _inputs(model, first_batch(program, job)[0])
    loaded = (_keras if request.kind == versions.KERAS else saved_model)(model, x, folder, job)
    return compared(model, loaded, x, job)


def saved_model(model: keras.Model, x: Any, folder: Path, job: Job) -> Callable[[Any], Any]:
    """Writes a SavedModel, and returns the function that a server of it calls."""
    given = {}
    if not isinstance(model, keras.Sequential | Functional):
        # Keras would take all inputs for float32.
        given["input_signature"] = [
            tf.nest.map_structure(lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype), x)
        ]
    with _saving(job, "exporting the model"):
        model.export(folder, format="tf_saved_model", verbose=False, **given)
    with user_code(job, "loading the exported model"):
        loaded: Any = tf.saved_model.load(folder)
    return lambda inputs: loaded.serve(inputs)


def compared(model: keras.Model, loaded: Callable[[Any], Any], x: Any, job: Job) -> str:
    """Checks that a loaded model predicts what the model does; what was compared, in one line.

    Raises:
        ProgramError: The predictions differ.
    """
    with user_code(job, "predicting a batch with the exported model"):
        wanted, found = tf.nest.flatten(model(x, training=False)), tf.nest.flatten(loaded(x))
        pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(wanted, found, strict=True)]
    for one, other in pairs:
        if one.shape != other.shape or not np.allclose(one, other, **TOLERANCE, equal_nan=True):
            by = f"by up to {np.abs(one - other).max():.3g}" if one.shape == other.shape else f"in shape {other.shape}"
            raise ProgramError(
                f"program {job.program!r}: predictions of the exported model differ {by} from those of the model, "
                "expected equal ones"
            )
    return f"predictions of {len(pairs[0][0])} examples verified"


def _keras(model: keras.Model, x: Any, folder: Path, job: Job) -> Callable[[Any], Any]:
    del x
    with _saving(job, "saving the model"):
        model.save(folder / versions.KERAS_FILE)
    with user_code(job, "loading the saved model"):
        # It is the user's own program: a Lambda layer in it may be loaded.
        loaded = keras.models.load_model(folder / versions.KERAS_FILE, compile=False, safe_mode=False)
    return lambda inputs: loaded(inputs, training=False)


def _inputs(model: keras.Model, x: Any) -> Any:
    """A batch in the type of a model's single input: a server does not convert numbers, as Keras does."""
    if isinstance(x, tf.Tensor) and isinstance(model, keras.Sequential | Functional) and len(model.inputs) == 1:
        return tf.cast(x, model.inputs[0].dtype) if x.dtype != tf.string else x
    return x


@contextmanager
def _saving(job: Job, what: str) -> Iterator[None]:
    """As `user_code`, but a full or failing disk, on which the program has no influence, is a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"the model cannot be written: {error.strerror or error}") from error
    except Exception as error:
        raise failure(job, what, error) from error


def main() -> None:
    """Writes into the folder of the first argument; the second one names the file of the verdict."""
    try:
        request = versions.Request.model_validate_json(sys.stdin.read())
        verdict = Verdict(summary=write(request, Path(sys.argv[1])))
    except PsfleetError as error:
        verdict = Verdict.of_error(error)
    Path(sys.argv[2]).write_text(verdict.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A data set that blocks inside TensorFlow would keep the process.
    os._exit(0)
