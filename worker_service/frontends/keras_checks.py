"""What psfleet cannot train of a Keras program: found before the first step, each with the reason."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.metrics import ALL_OBJECTS_DICT

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.tf.program_data import PSFLEET_BATCHES

logger = logging.getLogger("psfleet.worker")


def check_examples(program: str, batch_spec: Any) -> None:
    """Raises ProgramError if the examples are not `(x, y)` or `(x, y, sample_weight)`."""
    if not isinstance(batch_spec, tuple) or len(batch_spec) not in (2, 3):
        raise _error(program, f"training examples are {batch_spec}, expected (x, y) or (x, y, sample_weight)")


def check_ranks(program: str, model: keras.Model, batch_spec: Any) -> None:
    """Refuses batches of batches, which most layers would accept; examples of unknown rank are left to Keras.

    Raises:
        ProgramError: The examples have one dimension more than the model's inputs.
    """
    expected = [len(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
    specs = tf.nest.flatten(batch_spec[0])
    found = [spec.shape.rank for spec in specs]
    if None in found:
        return
    # Keras removes a last dimension of 1 itself.
    if expected and sorted(found) == sorted(rank + 1 for rank in expected) and specs[0].shape[-1] != 1:
        examples = [list(spec.shape[1:]) for spec in specs]
        inputs = [list(tensor.shape[1:]) for tensor in model.inputs]
        raise _error(program, f"examples have x of shape {examples}, expected {inputs}; {PSFLEET_BATCHES}")


def check_metrics(program: str, argument: str, metrics: Any) -> None:
    """Raises ProgramError if a metric is given by a name that Keras does not know.

    Keras finds that when it calls the model, and its message says neither what it looked for nor where.

    Args:
        argument: The name of the field of `KerasProgram`.
        metrics: As in `keras.Model.compile`.
    """
    for name in _metric_names(metrics):
        if name.lower() not in ("accuracy", "acc") and name not in ALL_OBJECTS_DICT:
            similar = difflib.get_close_matches(name, ["accuracy", *map(str, ALL_OBJECTS_DICT)], n=1, cutoff=0.7)
            hint = f"; did you mean {similar[0]!r}?" if similar else ""
            raise _error(program, f"KerasProgram.{argument} has {name!r}, expected the name of a metric of Keras{hint}")


def _metric_names(metrics: Any) -> Iterator[str]:
    """The metrics that are given by name: in lists and, by output, in dicts, but not in the config of a metric."""
    if isinstance(metrics, str):
        yield metrics
    elif isinstance(metrics, Mapping) and "class_name" not in metrics:
        yield from _metric_names(list(metrics.values()))
    elif isinstance(metrics, list | tuple):
        for each in metrics:
            yield from _metric_names(each)


def check_model(program: str, model: keras.Model, trained: Sequence[Any]) -> None:
    """Raises ProgramError if the model cannot be trained by a worker; `trained` are its trainable variables."""
    if not trained:
        raise _error(program, "the model has no trainable parameters, expected at least one")
    if type(model).train_step is not keras.Model.train_step:
        raise _error(program, "the model overrides train_step, which a worker never calls; expected compute_loss")
    if getattr(model, "_distribute_strategy", None) is not None:
        raise _error(
            program, "the model was made in the scope of a tf.distribute.Strategy, expected none: psfleet distributes"
        )
    stateful = [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    if stateful:
        raise _error(
            program,
            f"layer {stateful[0]} is stateful: its state is not among the model's variables, which the ps hold; "
            "expected stateful=False",
        )
    halves = [layer.name for layer in model._flatten_layers() if layer.compute_dtype == "float16"]
    if halves:
        raise _error(
            program,
            f"layer {halves[0]} computes in float16, for which psfleet does not scale the loss; expected the dtype "
            "policy float32 or mixed_bfloat16",
        )
    for variable in trained:
        if variable.dtype != "float32":
            raise _error(program, f"trainable variable {variable.path} is {variable.dtype}, expected float32")
        if variable.constraint is not None:
            raise _error(program, f"trainable variable {variable.path} has a constraint, which no ps applies")
        if variable.overwrite_with_gradient:
            what = "is overwritten with its gradient (float8), which no ps does"
            raise _error(program, f"trainable variable {variable.path} {what}")


def warn_if_compiled(model: keras.Model, job: Job) -> None:
    """Warns if the program has compiled the model itself: nothing of that is used."""
    if model.compiled:
        logger.warning(
            "model() compiles the model, with optimizer %s: that is not used, because each ps applies the job's "
            "optimizer, %s, to its shard; loss and metrics are those of KerasProgram",
            type(model.optimizer).__name__,
            job.rule.name,
            extra={"event": "compiled_model"},
        )


def check_assigned(program: str, changed: Sequence[Any], trained: Sequence[Any]) -> None:
    """Refuses a forward pass that assigns a trainable variable.

    Args:
        program: The job's `program`, for the message.
        changed: The variables that the forward pass assigns.
        trained: The trainable ones.

    Raises:
        ProgramError: Names the variable.
    """
    for variable in changed:
        if any(variable is each for each in trained):
            raise _error(
                program,
                f"the forward pass assigns trainable variable {variable.path}, which only the optimizer may change",
            )


def _error(program: str, message: str) -> ProgramError:
    return ProgramError(f"program {program!r}: {message}")
