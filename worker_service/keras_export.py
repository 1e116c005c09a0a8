"""Saves a Keras model in the formats of Keras and TensorFlow Serving, loads it, and compares its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.export.export_utils import get_input_signature
from keras.src.models.functional import Functional

from psfleet.checkpoint import versions
from psfleet.errors import ProgramError, UsageError
from psfleet.job.job import Job
from psfleet.job.user_code import failure, user_code
from worker_service.keras_inputs import knows_inputs

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Of the predictions of a model that was loaded: another graph may add numbers in another order."""
BFLOAT16_TOLERANCE = {"rtol": 2**-5, "atol": 2**-5}
"""Of those of a model with layers that compute in bfloat16, which has 8 bits: a fused operation rounds once
where several round each."""

ONLY_INPUT = "args_0"
"""Name that Keras gives to the only input of a model that does not know its inputs."""


def saved_model(model: keras.Model, spec: Any, folder: Path, job: Job) -> Callable[[Any], Any]:
    """Writes a SavedModel, and returns the function that a server of it calls.

    Args:
        spec: A `tf.TensorSpec` `[None, ...]` for each tensor of the training batches' x.
    """
    # Keras would take all inputs of another model for float32.
    is_known = knows_inputs(model)

    def serve(*args: Any) -> Any:
        # `model.export` leaves it out, so that layers like RandomFlip, whose default it is, would augment queries.
        return model(*args, training=False)

    with saving(job, "exporting the model"):
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", serve, get_input_signature(model) if is_known else [_signature(spec)])
        archive.write_out(folder, verbose=False)
    with user_code(job, "loading the exported model"):
        loaded: Any = tf.saved_model.load(folder)
    return lambda inputs: loaded.serve(inputs)


def _signature(spec: Any) -> Any:
    """The specification of each tensor of a batch; those of a dict have its keys as their names."""
    if isinstance(spec, Mapping) and all(isinstance(each, tf.TensorSpec) for each in spec.values()):
        return {key: tf.TensorSpec(each.shape, each.dtype, str(key)) for key, each in spec.items()}
    return spec


def compared(model: keras.Model, loaded: Callable[[Any], Any], x: Any, job: Job) -> str:
    """Checks that a loaded model predicts what the model does; what was compared, in one line.

    Raises:
        ProgramError: The predictions differ.
    """
    with user_code(job, "predicting a batch with the exported model"):
        wanted, found = tf.nest.flatten(model(x, training=False)), tf.nest.flatten(loaded(x))
        pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(wanted, found, strict=True)]
    is_rough = any(layer.compute_dtype == "bfloat16" for layer in model._flatten_layers())
    require_equal(pairs, job, BFLOAT16_TOLERANCE if is_rough else TOLERANCE)
    return f"predictions of {len(pairs[0][0])} examples verified"


def require_equal(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], job: Job, tolerance: Mapping[str, float] = TOLERANCE
) -> None:
    """Raises ProgramError if predictions of the model and of the exported model differ."""
    for one, other in pairs:
        is_text = one.dtype == object
        if one.shape != other.shape:
            by = f"in shape {other.shape}"
        elif np.array_equal(one, other) if is_text else np.allclose(one, other, **tolerance, equal_nan=True):
            by = ""
        else:
            by = "in strings" if is_text else f"by up to {np.abs(one - other).max():.3g}"
        if by:
            raise ProgramError(
                f"program {job.program!r}: predictions of the exported model differ {by} from those of the model, "
                "expected equal ones"
            )


def keras_file(model: keras.Model, spec: Any, folder: Path, job: Job) -> Callable[[Any], Any]:
    """Writes `model.keras`, and returns the loaded model's function."""
    del spec
    with saving(job, "saving the model"):
        model.save(folder / versions.KERAS_FILE)
    with user_code(job, "loading the saved model"):
        # It is the user's own program: a Lambda layer in it may be loaded.
        loaded = keras.models.load_model(folder / versions.KERAS_FILE, compile=False, safe_mode=False)
    return lambda inputs: loaded(inputs, training=False)


def inputs_of(model: keras.Model, x: Any) -> Any:
    """A batch in the types and the structure of a model's inputs: a server converts neither, as Keras does."""
    if not knows_inputs(model):
        return x
    wanted = model.inputs
    structure = model.input if isinstance(model, Functional) else wanted[0]
    is_by_name = isinstance(x, Mapping) and not isinstance(structure, Mapping)
    given = [x[each.name] for each in wanted] if is_by_name else keras.tree.flatten(x)
    if len(given) != len(wanted):
        return x
    cast = [
        value if value.dtype == tf.string else tf.cast(value, each.dtype)
        for value, each in zip(given, wanted, strict=True)
    ]
    return keras.tree.pack_sequence_as(structure, cast)


def named_inputs(model: keras.Model, x: Any, job: Job) -> dict[str, tf.Tensor]:
    """The tensors of a batch by the names that the inputs of the exported model have.

    Raises:
        ProgramError: The model does not know its inputs, which are several without names.
    """
    x = inputs_of(model, x)
    values = keras.tree.flatten(x)
    if knows_inputs(model):
        names = [each.name for each in model.inputs]
    elif isinstance(x, Mapping):
        names = keras.tree.flatten({key: str(key) for key in x})
    elif len(values) == 1:
        names = [ONLY_INPUT]
    else:
        got = f"{type(x).__name__} of {len(values)} tensors"
        raise ProgramError(f"program {job.program!r}: x is a {got}, expected one tensor or a dict with litert")
    return dict(zip(names, values, strict=True))


@contextmanager
def saving(job: Job, what: str) -> Iterator[None]:
    """As `user_code`, but a full or failing disk, on which the program has no influence, is a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"the model cannot be written: {error.strerror or error}") from error
    except Exception as error:
        raise failure(job, what, error) from error
