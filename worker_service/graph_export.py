"""Saves the predictions of a graph program for TensorFlow Serving, loads them, and compares the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from psfleet.checkpoint import versions
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import read_tensors, table_ranges
from psfleet.errors import ProgramError, UsageError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.job.user_code import user_code
from psfleet.layout import dense_table
from psfleet.tf.batching import batched
from psfleet.tf.program_data import read_within_deadline, training_data
from worker_service.input_pipeline import batch_spec, read
from worker_service.keras_export import require_equal, saving
from worker_service.predictions.graph_model import GraphModel
from worker_service.predictions.names import INPUTS, by_name, features_of, of_predictions
from worker_service.predictions.weights import Weights

SIGNATURE = v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def write(checkpoint: Checkpoint, program: GraphProgram, job: Job, folder: Path, kind: str) -> str:
    """Writes a SavedModel with the signature `serving_default` into a folder, and verifies it on a training batch.

    Returns:
        What was verified, in one line.

    Raises:
        UsageError: The format is another one, the program has no predictions, or the disk is full.
        ProgramError: The program failed, or predicts other values once it is loaded.
        BadJobError: The variables of the program differ from the checkpoint's.
    """
    if kind != versions.SAVED_MODEL:
        raise UsageError(f"--format {kind}: {job.program} is a GraphProgram, expected --format {versions.SAVED_MODEL}")
    data = training_data(program, job, 0, job.fleet.replicas)
    features = features_of(batch_spec(data, job, None))
    batches = read(batched(data, job, job.train.batch_size), job, "reading the first training batch")
    batch = read_within_deadline(job, "reading the first training batch", lambda: next(batches, None))
    if batch is None:
        raise ProgramError(f"program {job.program!r}: the training data of shard 0 is empty, expected examples")
    # Of a tuple the first component is flattened first.
    x = batch[: len(tf.nest.flatten(features))]
    model = GraphModel(program, job, _dense(checkpoint), features, of_predictions)
    with saving(job, "exporting the model"):
        inputs = _save(model, features, folder)
    with user_code(job, "loading the exported model"):
        loaded: Any = tf.saved_model.load(folder)
    with user_code(job, "predicting a batch with the exported model"):
        given = dict(zip(model.feeds, x, strict=True))
        found = loaded.signatures[SIGNATURE](**{name: tf.constant(given[feed]) for name, feed in inputs.items()})
    wanted = model.predict(x)
    require_equal([(value, found[name].numpy()) for name, value in wanted.items()], job)
    return f"predictions of {len(x[0])} examples verified"


def _dense(checkpoint: Checkpoint) -> Weights:
    """Every named tensor, and whole tables: a server has no rows of a ps."""
    tables = {each.name: dense_table(each, table_ranges(checkpoint, each)) for each in checkpoint.layout.embeddings}
    values, source = read_tensors(checkpoint) | tables, f"checkpoint {checkpoint.folder}"
    return Weights(checkpoint.step, values, source, frozen=checkpoint.layout.frozen.specs)


def _save(model: GraphModel, features: Any, folder: Path) -> dict[str, tf.Tensor]:
    """Writes the files; the placeholders by the names of the inputs."""
    inputs = by_name(tf.nest.pack_sequence_as(features, model.feeds), INPUTS)
    with model.session.graph.as_default():
        infos = [{name: _info(each) for name, each in tensors.items()} for tensors in (inputs, model.outputs())]
        signature = v1.saved_model.build_signature_def(*infos, v1.saved_model.signature_constants.PREDICT_METHOD_NAME)
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            model.session,
            [v1.saved_model.tag_constants.SERVING],
            {SIGNATURE: signature},
            # Vocabulary files of lookup tables, which go with the model.
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=model.initializer,
            saver=v1.train.Saver(model.variables),
        )
        builder.save()
    return inputs


def _info(tensor: tf.Tensor) -> TensorInfo:
    """Like `v1.saved_model.build_tensor_info`, which logs that it is deprecated."""
    return TensorInfo(name=tensor.name, dtype=tensor.dtype.as_datatype_enum, tensor_shape=tensor.shape.as_proto())
