"""Builds a program's Keras model and its training data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.core import compute_output_spec

from psfleet.errors import DataStallError, ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.polling import run_within
from psfleet.tf.batching import batched, of_all_batches, padding_explained
from psfleet.tf.inlined import inlined_functions
from psfleet.tf.kept_state import kept_state
from psfleet.tf.parts import PartError

T = TypeVar("T")

logger = logging.getLogger("psfleet")

POLICY = "dtype_policy"
"""Name of the attribute of Keras' state."""
PSFLEET_BATCHES = "if the data set yields batches, remove its batch(): psfleet batches"


class _Policies:
    """Keeps the dtype policy that a program has set, which `clear_session` resets.

    A policy that `model` sets applies to that model only: a worker of a study makes several.
    """

    def __init__(self) -> None:
        self._own: Any = None
        self._left: Any = None

    def begin(self) -> Any:
        """The policy with which a model begins; None: that of `floatx`."""
        present = global_state.get_global_attribute(POLICY)
        if present is not self._left:
            self._own = present
        return self._own

    def end(self) -> None:
        """After `model`."""
        self._left = global_state.get_global_attribute(POLICY)


_policies = _Policies()


def built_model(program: KerasProgram, job: Job) -> keras.Model:
    """A fresh, built Keras model whose initial weights are a function of `job.train.seed`.

    An unbuilt model is built by calling it on the first batch of shard 0, and once more as in training; a Sequential
    one is built before that, for the sizes that differ between batches. Keras' global state is cleared first.

    Raises:
        ProgramError: `model()` raised or returned something else, or the model raised on the batch.
        DataStallError: The batch did not come in `deadlines.first_batch_secs`.
    """
    if isinstance(program.model, keras.Model):
        raise ProgramError(
            f"program {job.program!r}: KerasProgram.model is a model, expected a function that makes and returns one: "
            "each process makes its own"
        )
    model = _made_model(program, job)
    if not model.built:
        batch, spec = first_batch(program, job)
        x = batch[0]
        if isinstance(model, keras.Sequential) and not _is_built_for(model, spec[0]):
            model = _made_model(program, job)
        with (
            batches_explained(tf.nest.map_structure(lambda tensor: tensor.shape, batch)),
            inlined_functions(),
            user_code(job, "building the model on its first batch"),
        ):
            _build(model, x)
            _build_for_training(model, x)
    return model


def _made_model(program: KerasProgram, job: Job) -> keras.Model:
    policy = _policies.begin()
    # Without a collection of garbage, which looks at every imported module that is not frozen: 0.3 CPU seconds.
    keras.backend.clear_session(free_memory=False)
    global_state.set_global_attribute(POLICY, policy)
    keras.utils.set_random_seed(job.train.seed)
    try:
        with user_code(job, "model()"):
            model = program.model()
    finally:
        _policies.end()
    if not isinstance(model, keras.Model):
        raise ProgramError(f"program {job.program!r}: model() returned {type(model).__name__}, expected keras.Model")
    return model


def _is_built_for(model: keras.Sequential, spec: Any) -> bool:
    """Builds a model for batches of all sizes, if they differ; whether it is as it was, or built.

    On a batch alone it would be built for the size of that.
    """
    if not isinstance(spec, tf.TensorSpec) or None not in (spec.shape[1:] if spec.shape.rank else ()):
        return True
    try:
        model.build(tuple(spec.shape))
    except Exception as error:
        # For example because a layer needs to know a size. It may be that of all batches.
        logger.debug("the model is built on a batch: %s", error)
        return False
    return True


def _build(model: keras.Model, x: Any) -> None:
    """Builds a model by a call, or as Keras' `fit` by a symbolic one if it can only be called in a graph."""
    try:
        with kept_state():
            model(x)
    except Exception:
        symbolic = tf.nest.map_structure(lambda each: keras.KerasTensor(each.shape, each.dtype.name), x)
        try:
            compute_output_spec(model, symbolic)
        except Exception as error:
            # The call says what is wrong.
            logger.debug("the model cannot be built by a symbolic call: %s", error)
        else:
            return
        raise


def _build_for_training(model: keras.Model, x: Any) -> None:
    """Builds layers that the model calls in training only; changes no variable."""
    if "training" not in model.call_signature_parameters:
        return

    def forward(x: Any) -> None:
        with keras.StatelessScope():
            model(x, training=True)

    tf.function(forward, autograph=False).get_concrete_function(x)


@contextmanager
def batches_explained(shapes: Any) -> Iterator[None]:
    """Adds to a ProgramError of the block that psfleet batches, if the data set may yield batches itself.

    Args:
        shapes: The `tf.TensorShape` of each tensor of a batch, `[batch, ...]`, in any structure.
    """
    try:
        yield
    except PartError:
        raise
    except ProgramError as error:
        examples = [shape[1:] for shape in tf.nest.flatten(tf.nest.map_structure(tf.TensorShape, shapes))]
        leading = {shape[0] if shape.rank else 0 for shape in examples}
        if len(leading) != 1 or leading & {0, 1}:
            raise
        raise ProgramError(f"{error}; {PSFLEET_BATCHES}", error.details) from error


def training_data(program: KerasProgram | GraphProgram, job: Job, shard_index: int, num_shards: int) -> tf.data.Dataset:
    """The data set that `program.train` returns for a shard.

    Raises:
        ProgramError: It raised, or returned something other than a `tf.data.Dataset`.
        DataStallError: It did not return in `deadlines.first_batch_secs`.
    """
    call = f"train({shard_index}, {num_shards})"
    dataset = read_within_deadline(job, call, lambda: program.train(shard_index, num_shards))
    if not isinstance(dataset, tf.data.Dataset):
        got = type(dataset).__name__
        raise ProgramError(
            f"program {job.program!r}: {call} returned {got}, expected tf.data.Dataset, for example "
            "tf.data.Dataset.from_tensor_slices((x, y)).shard(num_shards, shard_index)"
        )
    return dataset


def read_within_deadline(job: Job, what: str, read: Callable[[], T]) -> T:
    """Calls a function of the user's code that makes or reads a data set, and returns its result.

    Raises:
        ProgramError: The function raised an exception.
        DataStallError: It did not return in `deadlines.first_batch_secs`.
    """

    def call() -> T:
        with user_code(job, what):
            return read()

    secs = job.deadlines.first_secs
    try:
        return run_within(secs, call)
    except TimeoutError as error:
        raise DataStallError(f"program {job.program!r}: {what}", secs) from error


def first_batch(program: KerasProgram, job: Job) -> tuple[Any, Any]:
    """The first batch of shard 0, and what is known of all batches.

    Returns:
        `(x, y)` or `(x, y, sample_weight)`, each of shape `[batch, ...]`; and in the same structure a `tf.TensorSpec`
        `[None, ...]` for each tensor, where other sizes that differ between batches are None, too.

    Raises:
        ProgramError: `train` raised, or the data are empty or of another structure.
        DataStallError: The batch did not come in `deadlines.first_batch_secs`.
    """
    dataset = training_data(program, job, 0, job.fleet.replicas)
    batches = batched(dataset, job, job.train.batch_size)
    with padding_explained():
        batch = read_within_deadline(job, "reading the first training batch", lambda: next(iter(batches), None))
    if batch is None:
        raise ProgramError(f"program {job.program!r}: the training data of shard 0 is empty, expected examples")
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        got = tf.nest.map_structure(lambda tensor: list(tensor.shape), batch)
        raise ProgramError(
            f"program {job.program!r}: training examples have the structure {got}, expected (x, y) or "
            "(x, y, sample_weight)"
        )
    return batch, tf.nest.map_structure(_spec_of, batches.element_spec, batch)


def _spec_of(spec: Any, tensor: Any) -> Any:
    """The specification of all batches; where the data set does not know the rank, the shape of its first batch."""
    if not isinstance(spec, tf.TensorSpec):
        return spec
    return of_all_batches(tensor if spec.shape.rank is None else spec)
