"""Loads a model and a data set, and predicts the batches of one worker."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import tensorflow as tf

from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import read_manifest
from psfleet.errors import LostPeerError, ProgramError, StorageError
from psfleet.job.job import Job, job_from_json
from psfleet.job.prediction_files import REQUEST, Request
from psfleet.job.program import load_callable, load_program
from psfleet.job.sections import Device
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.batching import batched, check_padding
from psfleet.tf.program_data import read_within_deadline
from psfleet.tf.server import session_config
from worker_service.build_deadline import DEADLINES
from worker_service.driver_link import DriverLink, linked
from worker_service.input_pipeline import PREFETCHED_BATCHES
from worker_service.predictions.names import features_of
from worker_service.predictions.predictor import predictor
from worker_service.predictions.share import write_share
from worker_service.predictions.weights import Weights, of_checkpoint, of_trial
from worker_service.random_data import has_own_order, is_random
from worker_service.trial.signs_of_life import SignsOfLife

STAY_SECS = 1.0
"""Interval in which a worker whose share is complete looks whether the driver has begun again."""


def serve(settings: Settings, stop: Stop) -> int:
    """Completes the share of this worker; in a container, waits then until the driver ends this process.

    Returns:
        The exit code.

    Raises:
        UsageError: The program cannot predict.
        ProgramError: The program or the data set failed.
        ReplacedError: Another process is this worker.
        StoppedError: A signal stopped this worker.
    """
    with linked(settings, stop.end_process) as link:
        life = SignsOfLife(link.beat, stop.end_process, link.fail)
        life.start()
        request = Request.read(link.fetch(REQUEST).parent)
        if settings.index not in request.complete:
            _complete(request, settings, link, life, stop)
        if settings.driver is not None:
            _stay(request, link, life, stop)
    return 0


def _complete(request: Request, settings: Settings, link: DriverLink, life: SignsOfLife, stop: Stop) -> None:
    """Predicts the share of this worker, and delivers it."""
    job = job_from_json(request.job, "job of the model")
    _prepare(job.device)
    for name in request.files:
        link.fetch(name)
    life.begin(
        f"program {job.program!r} and data set {request.data!r} to be loaded", DEADLINES * job.deadlines.first_secs
    )
    program = load_program(job, settings.program_folder)
    # Errors of the data set name it as their program.
    of_data = job.model_copy(update={"program": request.data})
    data = data_set(of_data, settings.program_folder)
    batches = batched(data, job, job.evaluate.batch_size or job.train.batch_size).prefetch(PREFETCHED_BATCHES)
    found = predictor(program, job, _weights(request, job, link.folder), features_of(batches.element_spec))
    write_share(found, batches, of_data, request, link, settings.index, life, stop)


def _stay(request: Request, link: DriverLink, life: SignsOfLife, stop: Stop) -> None:
    """Waits until a sign of life ends this process; does not return.

    Raises:
        LostPeerError: The driver was started again, and has lost the share.
    """
    life.begin("the driver")
    while not stop.event.wait(STAY_SECS):
        found = request
        # A driver that does not answer may be started again; how long this process waits is up to the signs of life.
        # A sign of life that ends this process removes the folder.
        with suppress(LostPeerError, StorageError, OSError):
            found = Request.read(link.fetch(REQUEST).parent)
        if found.attempt != request.attempt:
            raise LostPeerError("the driver has begun again without the share of this worker")
    raise stop.error()


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
    if is_random(dataset) or has_own_order(dataset):
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


def _weights(request: Request, job: Job, folder: Path) -> Weights:
    """The weights of the model.

    Args:
        folder: Has the files that were fetched; without any, the path of the model is absolute.
    """
    if request.weights is not None:
        return of_trial(str(folder / request.weights), job.train.steps)
    assert request.checkpoint is not None, "the request has one of the two"
    location = parse(request.checkpoint)
    return of_checkpoint(read_manifest(folder / location if isinstance(location, Path) else location))
