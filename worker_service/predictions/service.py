"""Loads a model and a data set, and predicts the batches of one worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import read_manifest
from psfleet.errors import ProgramError
from psfleet.job import trial_records
from psfleet.job.job import Job, job_from_json
from psfleet.job.prediction_files import Request
from psfleet.job.program import GraphProgram, KerasProgram, load_callable, load_program
from psfleet.job.sections import Device
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.batching import batched, check_padding
from psfleet.tf.program_data import read_within_deadline
from psfleet.tf.server import session_config
from worker_service.build_deadline import DEADLINES
from worker_service.input_pipeline import PREFETCHED_BATCHES
from worker_service.predictions.names import features_of
from worker_service.predictions.predictor import Predictor, predictor
from worker_service.predictions.share import write_share
from worker_service.predictions.weights import of_checkpoint, of_trial
from worker_service.random_data import is_random
from worker_service.trial.signs_of_life import SignsOfLife


def serve(settings: Settings, stop: Stop) -> int:
    """Writes the share of this worker; returns the exit code.

    Raises:
        UsageError: The program cannot predict.
        ProgramError: The program or the data set failed.
        StoppedError: A signal stopped this worker.
    """
    request = Request.read(settings.out)
    job = job_from_json(request.job, "job of the model")
    life = SignsOfLife.in_file(trial_records.life_file(settings.out, settings.index))
    life.start()
    _prepare(job.device)
    life.begin(
        f"program {job.program!r} and data set {request.data!r} to be loaded", DEADLINES * job.deadlines.first_secs
    )
    program = load_program(job, settings.program_folder)
    # Errors of the data set name it as their program.
    of_data = job.model_copy(update={"program": request.data})
    data = data_set(of_data, settings.program_folder)
    batches = batched(data, job, job.evaluate.batch_size or job.train.batch_size).prefetch(PREFETCHED_BATCHES)
    found = _loaded(request, program, job, features_of(batches.element_spec))
    write_share(found, batches, of_data, request, settings.out, settings.index, life, stop)
    return 0


def data_set(job: Job, folder: Path) -> tf.data.Dataset:
    """The data set of a callable, which is found in a folder, in the current one, or on the Python path.

    Args:
        job: Has the callable in the place of the program.

    Raises:
        ProgramError: There is none, it raised, or its data set cannot be predicted by several workers.
    """
    sys.path.append(os.getcwd())
    make = load_callable(job, folder)
    name = f"{job.program.partition(':')[2]}()"
    dataset = read_within_deadline(job, name, make)
    if not isinstance(dataset, tf.data.Dataset):
        raise ProgramError(
            f"program {job.program!r}: {name} returned {type(dataset).__name__}, expected tf.data.Dataset"
        )
    if is_random(dataset):
        raise ProgramError(
            f"program {job.program!r}: the data set is random, expected the same order in each worker: no shuffle()"
        )
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ProgramError(f"program {job.program!r}: the data set is endless, expected no repeat()")
    check_padding(dataset.element_spec, job, f"examples of {name}")
    return dataset


def _prepare(device: Device) -> None:
    """Has eager execution use the threads of a session, and take memory of GPUs, which workers share, as needed."""
    config = session_config(device)
    tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def _loaded(request: Request, program: KerasProgram | GraphProgram, job: Job, features: Any) -> Predictor:
    if request.weights is not None:
        return predictor(program, job, of_trial(request.weights, job.train.steps), features)
    assert request.checkpoint is not None, "the request has one of the two"
    return predictor(program, job, of_checkpoint(read_manifest(parse(request.checkpoint))), features)
