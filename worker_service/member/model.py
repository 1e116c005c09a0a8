"""The Keras model of a member: built by its program, with inputs and outputs by name, and weights that are replaced."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import safetensors.numpy
import tensorflow as tf
from keras.src.models.functional import Functional

from psfleet.checkpoint import export, versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.checkpoint.tensors import read_tensors, table_ranges
from psfleet.errors import NoCheckpointError, UsageError
from psfleet.inference.tensors import BYTES, ModelMetadata, TensorMetadata, datatype_of
from psfleet.job.job import Job, job_from_json
from psfleet.job.program import KerasProgram, load_program
from psfleet.job.service_access import MemberSource
from psfleet.job.user_code import user_code
from psfleet.layout import dense_table
from psfleet.tf.program_data import built_model, first_batch


@dataclass(frozen=True)
class Weights:
    """Tensors of a model.

    Attributes:
        step: After so many steps.
        values: By name.
        source: Where they are from.
        origin: See `origin_of`; empty: a trial.
    """

    step: int
    values: Mapping[str, np.ndarray]
    source: str
    origin: str = ""


def found_checkpoint(source: MemberSource) -> Checkpoint:
    """The checkpoint of a member's run; raises as `versions.find`."""
    assert source.run is not None, "a trial has no checkpoint"
    # A run may train there: its newest checkpoint may not be committed yet.
    return versions.find(parse(source.run), source.step, source.best, is_live=True)


def checkpoint_weights(checkpoint: Checkpoint) -> Weights:
    """The weights in a checkpoint; embedding tables with all their rows."""
    tables = {each.name: dense_table(each, table_ranges(checkpoint, each)) for each in checkpoint.layout.embeddings}
    values = read_tensors(checkpoint) | tables
    return Weights(checkpoint.step, values, f"checkpoint {checkpoint.folder}", origin_of(checkpoint))


def origin_of(checkpoint: Checkpoint) -> str:
    """What distinguishes a checkpoint from others in its run folder, also after `psfleet train --fresh`."""
    return f"{checkpoint.run} {checkpoint.folder}"


def load(source: MemberSource) -> tuple[Job, Path, Weights]:
    """The job of a member, the folder of its program, and its weights.

    Raises:
        UsageError: There is no such checkpoint, or it records no program.
        NoCheckpointError: None is valid, or the weights of the trial are gone.
    """
    if source.run is None:
        job = job_from_json(source.job, "the trial")
        try:
            values = safetensors.numpy.load_file(source.weights)
        except (OSError, safetensors.SafetensorError) as error:
            raise NoCheckpointError(f"{source.weights} cannot be read: {error}") from error
        return job, Path(source.program_folder), Weights(job.train.steps, values, source.weights)
    checkpoint = found_checkpoint(source)
    return *recorded_program(checkpoint, "a KerasProgram"), checkpoint_weights(checkpoint)


class ServedModel:
    """A Keras model, its weights, and its predictions.

    Args of the constructor:
        job: Of the program.
        folder: Of the program.

    A thread may replace the weights while others predict: each prediction is made with those of one step.

    Attributes:
        metadata: Names, datatypes and shapes of inputs and outputs.

    Raises:
        UsageError: The program has no Keras model, or one that cannot be served.
        ProgramError: The program cannot be loaded, or does not build its model.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._step = 0
        hashed = [name for name, table in job.tables.items() if table.hash]
        if hashed:
            raise UsageError(f"tables.{hashed[0]}.hash is true, which no Keras model has, expected tables without hash")
        program = load_program(job, folder)
        if not isinstance(program, KerasProgram):
            raise UsageError(f"program {job.program} has no Keras model, expected a KerasProgram")
        self._model = built_model(program, job)
        self._structure = _input_structure(self._model, program, job)
        specs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in tf.nest.flatten(self._structure)]
        with user_code(job, "predicting"):
            self._function = tf.function(self._outputs, input_signature=specs, autograph=False)
            outputs = self._function.get_concrete_function().structured_outputs
        self.metadata = ModelMetadata(
            inputs=_metadata("input", self._structure, specs),
            outputs=_metadata("output", outputs, tf.nest.flatten(outputs)),
        )

    @property
    def step(self) -> int:
        """Of the weights; waits for a prediction that is being made."""
        with self._lock:
            return self._step

    def assign(self, weights: Weights) -> None:
        """Replaces the weights.

        Raises:
            BadJobError: They are of another model; the model keeps those that it has.
        """
        shapes = {name: list(value.shape) for name, value in weights.values.items()}
        variables = export.matched(weights.source, shapes, self._model)
        with self._lock:
            for name, variable in variables.items():
                variable.assign(weights.values[name])
            self._step = weights.step

    def predict(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Step of the weights and predictions of a batch; inputs and outputs as in the metadata, `[rows, ...]`.

        Raises:
            ProgramError: The model fails on them.
        """
        with self._lock, user_code(self._job, "predicting"):
            outputs = tf.nest.flatten(self._function(*map(tf.convert_to_tensor, inputs)))
            return self._step, [each.numpy() for each in outputs]

    def _outputs(self, *inputs: tf.Tensor) -> Any:
        found = self._model(tf.nest.pack_sequence_as(self._structure, inputs), training=False)
        # NumPy has no bfloat16.
        return tf.nest.map_structure(
            lambda each: tf.cast(each, tf.float32) if each.dtype == tf.bfloat16 else each, found
        )


def _input_structure(model: keras.Model, program: KerasProgram, job: Job) -> Any:
    """Shape and dtype of each input, in the structure that the model is called with."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0]
    return model.input if isinstance(model, Functional) else first_batch(program, job)[0]


def _metadata(kind: str, structure: Any, specs: Sequence[Any]) -> tuple[TensorMetadata, ...]:
    """Those of the inputs or outputs: with the keys of a dictionary as names, or else `input_0`, `input_1`, ..."""
    is_named = isinstance(structure, dict) and len(structure) == len(specs)
    names = sorted(structure) if is_named else [f"{kind}_{at}" for at in range(len(specs))]
    return tuple(_tensor(name, spec) for name, spec in zip(names, specs, strict=True))


def _tensor(name: str, spec: Any) -> TensorMetadata:
    dtype = tf.as_dtype(spec.dtype)
    datatype = BYTES if dtype == tf.string else datatype_of(dtype.as_numpy_dtype)
    if not datatype or spec.shape.rank in (None, 0):
        raise UsageError(f"{name} is {dtype.name} of shape {spec.shape}, expected a type of the protocol, and rows")
    shape = tuple(-1 if size is None else int(size) for size in spec.shape[1:])
    return TensorMetadata(name=name, datatype=datatype, shape=(-1, *shape))
