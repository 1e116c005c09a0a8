"""Converts a SavedModel to LiteRT, in float32 or int8, and runs the result with the interpreter of `ai-edge-litert`."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import KerasProgram
from psfleet.job.user_code import failure, user_code
from psfleet.tf.batching import batched
from psfleet.tf.program_data import training_data
from worker_service.frontends.keras_evaluation import evaluate
from worker_service.input_pipeline import batch_spec, evaluation_batches, read

_OPERATION = re.compile(r"'(tf\.\w+)' op ")
_BFLOAT16_OPERATION = re.compile(r'"(tf\.\w+)"\(.*bf16>')
"""As the converter shows an operation with its types."""


class LitertModel(keras.Model):
    """A function from a batch to predictions, as a model that Keras evaluates with a program's loss and metrics.

    Args of the constructor:
        predict: The function.
        names: Of the outputs, by which losses and metrics may be given; empty: the model has none.
    """

    def __init__(self, predict: Callable[[Any], Any], names: Sequence[str]) -> None:
        super().__init__()
        self._predict = predict
        if names:
            # Keras looks whether a model has this attribute, as functional ones have.
            self.output_names = list(names)

    def call(self, inputs: Any) -> Any:
        """See `keras.Model`."""
        return self._predict(inputs)


Example = Mapping[str, np.ndarray]
"""The inputs of a model by name, `[1, ...]` each."""


def calibration(program: KerasProgram, job: Job, number: int, named: Callable[[Any], Example]) -> list[Example]:
    """The inputs of the first training examples after `train.shuffle`: at most `number`.

    Args:
        named: From the features of a batch.

    Raises:
        ProgramError: The program raised, or the data are empty.
    """
    examples = training_data(program, job, 0, 1)
    if job.train.shuffle:
        examples = examples.shuffle(job.train.shuffle, seed=job.train.seed)
    what = "reading the examples of --calibrate"
    features = examples.element_spec[0]
    count = len(tf.nest.flatten(features))
    found = [
        named(tf.nest.pack_sequence_as(features, [tf.constant(each) for each in arrays[:count]]))
        for arrays in read(batched(examples.take(number), job, 1), job, what)
    ]
    if not found:
        raise ProgramError(f"program {job.program!r}: the training data are empty, expected examples for --calibrate")
    return found


def converted(folder: Path, job: Job, examples: Sequence[Example] = ()) -> bytes:
    """A SavedModel as a LiteRT model; int8 with weights and activations calibrated on examples, if there are any.

    The inputs and outputs of an int8 model stay float.

    Raises:
        ProgramError: It cannot be converted; names the operations.
    """
    with _silent(), warnings.catch_warnings():
        # Calibration runs tf.lite.Interpreter, which announces its removal.
        warnings.simplefilter("ignore", UserWarning)
        converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
        if examples:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: (dict(each) for each in examples)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        try:
            content: bytes = converter.convert()
        except Exception as error:
            operations = _operations(str(error))
            if not operations:
                raise failure(job, "converting the model to LiteRT", error) from error
            raise ProgramError(
                f"program {job.program!r}: the model cannot be converted: LiteRT has no operation for {operations}"
            ) from error
    return content


def _operations(problem: str) -> str:
    """The operations that the converter names; LiteRT may have an operation in other types than bfloat16."""
    in_bfloat16 = set(_BFLOAT16_OPERATION.findall(problem))
    found = sorted(set(_OPERATION.findall(problem)))
    return ", ".join(f"{each} in bfloat16" if each in in_bfloat16 else each for each in found)


def loaded(content: bytes, job: Job, named: Callable[[Any], Example], structure: Any) -> Callable[[Any], Any]:
    """The function of a LiteRT model with one output tensor, from the features of a batch.

    Args:
        structure: Of the predictions of the Keras model.

    Raises:
        ProgramError: It has other inputs or several outputs, or cannot be loaded.
    """
    with user_code(job, "loading the LiteRT model"), _silent():
        interpreter = Interpreter(model_content=content)
        # Here and not at the first call, because it writes to standard error.
        interpreter.allocate_tensors()
        runner = interpreter.get_signature_runner()
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    if len(outputs) != 1:
        raise ProgramError(
            f"program {job.program!r}: the model has {len(outputs)} outputs, expected one with --format litert"
        )
    (result,) = outputs

    def predict(x: Any) -> Any:
        given = named(x)
        if set(given) != set(inputs):
            raise ProgramError(
                f"program {job.program!r}: the LiteRT model has the inputs {sorted(inputs)}, expected {sorted(given)}"
            )
        found = runner(**{name: given[name].astype(inputs[name]["dtype"]) for name in inputs})[result]
        return keras.tree.pack_sequence_as(structure, [tf.constant(found)])

    return predict


def metrics(predict: Callable[[Any], Any], program: KerasProgram, job: Job, names: Sequence[str]) -> dict[str, float]:
    """The program's evaluation with these predictions; the loss is without regularization. Empty without data.

    Args:
        names: As of `LitertModel`.

    Raises:
        ProgramError: The program, its loss or a metric raised.
    """
    if program.evaluate is None:
        return {}
    training = batch_spec(training_data(program, job, 0, job.fleet.replicas), job, job.train.batch_size)
    batches = evaluation_batches(program, job, training)
    assert batches is not None, "the program has evaluation data"
    model = LitertModel(predict, names)
    with user_code(job, "compile()"):
        given = {"metrics": program.metrics, "weighted_metrics": program.weighted_metrics}
        model.compile(loss=program.loss, **given, run_eagerly=True)
    return evaluate(model, batches, job)


@contextmanager
def _silent() -> Iterator[None]:
    """Discards what the converter and the interpreter write past Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(before, 1):
                os.dup2(old, number)
                os.close(old)
