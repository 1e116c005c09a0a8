"""The model of a member: its predictions as the protocol names them, and weights that are replaced."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.errors import ChangedProgramError, UsageError
from psfleet.inference.tensors import BYTES, ModelMetadata, TensorMetadata, datatype_of
from psfleet.job.job import Job, job_from_json
from psfleet.job.program import KerasProgram, load_program
from psfleet.job.program_files import PROGRAM_DIGEST, digest, job_files
from psfleet.job.service_access import MemberSource
from psfleet.job.user_code import user_code
from worker_service.predictions.names import INPUT, of_outputs, protocol_names
from worker_service.predictions.predictor import predictor
from worker_service.predictions.weights import Weights, of_checkpoint, of_trial


def found_checkpoint(source: MemberSource) -> Checkpoint:
    """The checkpoint of a member's run; raises as `versions.find`."""
    assert source.run is not None, "a trial has no checkpoint"
    # A run may train there: its newest checkpoint may not be committed yet.
    return versions.find(parse(source.run), source.step, source.best, is_live=True)


def load(source: MemberSource) -> tuple[Job, Path, Weights]:
    """The job of a member, the folder of its program, and its weights.

    Raises:
        UsageError: There is no such checkpoint, or it records no program.
        NoCheckpointError: None is valid, or the weights of the trial are gone.
    """
    if source.run is None:
        job = job_from_json(source.job, "the trial")
        return job, Path(source.program_folder), of_trial(source.weights, job.train.steps)
    checkpoint = found_checkpoint(source)
    job, folder = recorded_program(checkpoint)
    return job, Path(source.program_folder or folder), of_checkpoint(checkpoint)


def has_program(source: MemberSource, checkpoint: Checkpoint) -> bool:
    """Whether the files of the program that trained a checkpoint are those that a member finds; raises as `load`."""
    job, folder = recorded_program(checkpoint)
    found = digest(job_files(job, Path(source.program_folder or folder)))
    return found == checkpoint.extra.get(PROGRAM_DIGEST, found)


class ServedModel:
    """A trained program as a service has it.

    Args of the constructor:
        job: Of the program.
        folder: Of the program.
        weights: To begin with.

    A thread may replace the weights while others predict: each prediction is made with those of one step.

    Attributes:
        metadata: Names, datatypes and shapes of inputs and outputs.

    Raises:
        UsageError: The program has no predictions, or some that cannot be served.
        ProgramError: The program cannot be loaded, or does not build its model.
        BadJobError: The weights are of another model.
    """

    def __init__(self, job: Job, folder: Path, weights: Weights) -> None:
        self._lock = threading.Lock()
        self._step = weights.step
        program = load_program(job, folder)
        self._is_keras = isinstance(program, KerasProgram)
        self._identity = self._identity_of(weights)
        self._shapes = {name: value.shape for name, value in weights.tensors.items()}
        self._embeddings = weights.embeddings
        self._predictor = predictor(program, job, weights, named=of_outputs)
        structure = self._predictor.features
        specs = tf.nest.flatten(structure)
        with user_code(job, "naming the inputs"):
            places = protocol_names(tf.nest.pack_sequence_as(structure, list(range(len(specs)))), INPUT)
        self.metadata = ModelMetadata(
            inputs=_metadata({name: specs[at] for name, at in sorted(places.items(), key=lambda item: item[1])}),
            outputs=_metadata(self._predictor.outputs()),
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
            ChangedProgramError: They fit, but another program, or other options of it, has trained them.
        """
        weights.require(self._shapes, self._embeddings)
        if self._identity_of(weights) != self._identity:
            raise ChangedProgramError(f"{weights.source} is of another program, or of other options, than this model")
        with self._lock:
            self._predictor.assign(weights)
            self._step = weights.step

    def _identity_of(self, weights: Weights) -> tuple[str, int]:
        """What weights must have in common with those that the model was built with; no Keras model reads the step."""
        return weights.program, 1 if self._is_keras else weights.divisor

    def predict(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Step of the weights and predictions of a batch; inputs and outputs as in the metadata, `[rows, ...]`.

        Raises:
            ProgramError: The model fails on them.
        """
        with self._lock:
            found = self._predictor.predict(inputs)
            return self._step, [found[each.name] for each in self.metadata.outputs]


def _metadata(tensors: Mapping[str, tf.Tensor]) -> tuple[TensorMetadata, ...]:
    return tuple(_tensor(name, each) for name, each in tensors.items())


def _tensor(name: str, spec: tf.Tensor) -> TensorMetadata:
    dtype = tf.as_dtype(spec.dtype)
    datatype = BYTES if dtype == tf.string else datatype_of(dtype.as_numpy_dtype)
    if not datatype or spec.shape.rank in (None, 0):
        raise UsageError(f"{name} is {dtype.name} of shape {spec.shape}, expected a type of the protocol, and rows")
    shape = tuple(-1 if size is None else int(size) for size in spec.shape[1:])
    return TensorMetadata(name=name, datatype=datatype, shape=(-1, *shape))
