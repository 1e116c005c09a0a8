"""A member of a service: builds its model, joins the front, and answers batches of queries until it is stopped."""

from __future__ import annotations

import logging
import os
import threading

from psfleet.addresses import Address
from psfleet.control.credentials import read_identity
from psfleet.errors import BadJobError, ChangedProgramError, ProgramError, PsfleetError
from psfleet.service.process import Stop, log_failure
from psfleet.service.settings import Settings
from psfleet.tf.server import boot
from psfleet.tls.service_plane import ROLE as ROLE_OF_ALL
from psfleet.tls.service_plane import member_plane
from worker_service.member.connection import FrontConnection
from worker_service.member.function import PredictFunction
from worker_service.member.model import ServedModel, load
from worker_service.member.newer_weights import NewerWeights
from worker_service.trial.signs_of_life import SignsOfLife

logger = logging.getLogger("psfleet.member")

ROLE = "member"
BATCH_SECS = 30.0
"""Until the front, which sends something each second, has sent anything."""


def serve(settings: Settings, stop: Stop) -> int:
    """Answers queries until a signal comes; returns the exit code.

    Raises:
        BadJobError: This process belongs to no service.
        LostPeerError: The front is gone.
        StoppedError: A signal came.
        PsfleetError: As of `load` and `ServedModel`.
    """
    access = settings.service
    if access is None or access.member is None:
        raise BadJobError("PSFLEET_SERVICE is missing, expected access of a member to a service as JSON")
    life = SignsOfLife.of_service(settings.out, ROLE, settings.index)
    life.start()
    joined = threading.Event()
    threading.Thread(target=end_before_joining, args=(stop, joined), name="stop", daemon=True).start()
    job, folder, weights = load(access.member)
    life.begin(f"program {job.program!r} to be loaded and built", job.deadlines.first_secs)
    model = ServedModel(job, folder, weights)
    life.begin("the front")
    newer = NewerWeights(access.member, weights)
    identity = read_identity(settings.tls, ROLE_OF_ALL)
    with member_plane(settings, Address.parse(access.front), identity) as plane:
        boot(plane.own, job.device)
        plane.check()
        with (
            PredictFunction(model),
            FrontConnection(plane.front, plane.own, settings.index, model.metadata, job.device) as connection,
        ):
            newer.start()
            connection.join(weights.step)
            joined.set()
            _log(weights.step)
            answer_all(connection, model, newer, life, stop, job.deadlines.stall_secs)
    raise stop.error()


def end_before_joining(stop: Stop, joined: threading.Event) -> None:
    """Ends this process at a signal, unless it answers queries: it may wait for a front that has ended, too."""
    stop.event.wait()
    if not joined.is_set():
        code, _ = log_failure(logger, stop.error())
        stop.end_process(code)


def answer_all(
    connection: FrontConnection,
    model: ServedModel,
    newer: NewerWeights,
    life: SignsOfLife,
    stop: Stop,
    predict_secs: float,
) -> None:
    """Answers one batch after the other, each with one version of the weights, until a signal comes.

    Args:
        predict_secs: Deadline of a prediction; the process ends when it expires.

    Raises:
        ChangedProgramError: Newer weights need another program, whose files are here. The batch before is answered.
    """
    changed: ChangedProgramError | None = None
    while not stop.event.is_set():
        if changed is not None:
            raise changed
        life.begin("a query, or a sign of life, of the front", BATCH_SECS)
        number, inputs = connection.take()
        life.begin("a prediction", predict_secs)
        changed = _replace(model, newer)
        if not len(inputs[0]):
            connection.put(number, model.step, None)
            continue
        try:
            step, outputs = model.predict(inputs)
        except ProgramError as error:
            logger.warning("no prediction: %s", error)
            connection.put(number, model.step, None, str(error))
        else:
            connection.put(number, step, outputs)


def _replace(model: ServedModel, newer: NewerWeights) -> ChangedProgramError | None:
    """Replaces the weights if there are newer ones; the error with which a member ends that has to be built again."""
    weights = newer.taken()
    if weights is None:
        return None
    try:
        model.assign(weights)
    except PsfleetError as error:
        if isinstance(error, ChangedProgramError) and newer.has_program:
            return error
        logger.warning("step %d is not served: %s", weights.step, error)
        return None
    _log(weights.step)
    return None


def _log(step: int) -> None:
    logger.info("serves step %d", step, extra={"event": "serving", "step": step, "pid": os.getpid()})
