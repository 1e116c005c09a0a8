"""A worker from its start to the end of its run: joins, loads the program, trains, reports."""

from __future__ import annotations

import gc
import logging
import secrets
from pathlib import Path
from typing import Any

from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient
from psfleet.control.credentials import read_identity
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError, PermanentError, ProgramError, PsfleetError, StoppedError
from psfleet.job.job import Job
from psfleet.job.program import load_program
from psfleet.layout import Layout
from psfleet.polling import wait_until
from psfleet.report import html
from psfleet.service.logs import log_json
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.server import boot
from psfleet.tls.data_plane import DataPlane, data_plane
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.chief import Chief
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.chief.recovery import Recovery
from worker_service.chief.run_attempt import begin
from worker_service.chief.run_finisher import RunFinisher, versions
from worker_service.evaluation import Evaluator
from worker_service.frontends import front_end
from worker_service.heartbeat import Heartbeat
from worker_service.input_pipeline import batches
from worker_service.metrics import Duties, WorkerMetrics
from worker_service.training_loop import Batches
from worker_service.worker import TaskAddresses, Worker

logger = logging.getLogger("psfleet.worker")


def serve(settings: Settings, stop: Stop) -> int:
    """Works until the run is over; the exit code.

    Raises:
        PsfleetError: What ended this worker before the run.
    """
    if settings.job is None or not settings.ps or not settings.run:
        raise BadJobError("PSFLEET_JOB, PSFLEET_PS and PSFLEET_RUN are missing, expected all three")
    job = settings.job
    measured = WorkerMetrics(settings.run, job)
    identity = read_identity(settings.tls, "worker")
    with (
        FleetClient(settings.ps, settings.run, identity) as fleet,
        serving(settings.address, identity=identity, stopping=stop.event),
        exposing(settings, measured.read),
    ):
        index = _join(fleet, settings, job, stop)
        log_json(run=settings.run, role="worker", index=index)
        logger.info("joined as worker %d", index)
        measured.heartbeat = heartbeat = Heartbeat(fleet, index, settings.address, stop)
        heartbeat.start()
        try:
            with data_plane(settings, "worker", index, identity) as plane:
                return _work(settings, plane, job, fleet, heartbeat, stop, measured)
        except PsfleetError as error:
            if isinstance(error, PermanentError) or (index == 0 and not _leaves(error, stop)):
                details = error.details if isinstance(error, ProgramError) else ""
                fleet.finish(pb.Outcome(exit_code=error.exit_code, message=str(error), details=details))
            raise
        finally:
            heartbeat.close()


def _join(fleet: FleetClient, settings: Settings, job: Job, stop: Stop) -> int:
    """Takes an index from ps 0 and tells it to the others."""
    process = secrets.token_hex(8)

    def ask() -> int | LostPeerError:
        if stop.event.is_set():
            raise stop.error()
        index = settings.index
        try:
            for client in fleet.ps:
                request = pb.JoinRequest(
                    index=index,
                    worker_limit=job.fleet.worker_limit,
                    cause=settings.cause,
                    process=process,
                    address=settings.address.data,
                )
                index = client.join(request).index
        except LostPeerError as error:
            return error
        return index

    what = f"{len(fleet.ps)} parameter servers to answer"
    index = wait_until(ask, job.deadlines.start_secs, what, done=lambda found: isinstance(found, int), poll_secs=0.2)
    assert isinstance(index, int), "wait_until checked it"
    return index


def _work(
    settings: Settings,
    plane: DataPlane,
    job: Job,
    fleet: FleetClient,
    heartbeat: Heartbeat,
    stop: Stop,
    measured: WorkerMetrics,
) -> int:
    boot(plane.own, job.device)
    plane.check()
    program = load_program(job, settings.program_folder)
    num_shards = job.fleet.replicas
    front = front_end(program, job, num_shards, heartbeat.index)
    layout = Layout.plan(front.parameters, front.state, front.frozen, job.fleet.ps, job.update.bucket_bytes)
    measured.layout = layout
    shard = heartbeat.index % num_shards
    place = TaskAddresses(settings.run, heartbeat.index, plane.own, plane.ps)
    parts: dict[str, Any] = {
        "place": place,
        "job": job,
        "layout": layout,
        "front_end": front,
        "fleet": fleet,
        "heartbeat": heartbeat,
        "stop": stop,
        "batches": Batches(lambda start: batches(program, job, shard, num_shards, start)),
    }
    # What is there now stays: the collector need not look at it again (5 % of a worker's time otherwise).
    gc.freeze()
    if heartbeat.index != 0:
        outcome = Worker(**parts).run()
        if outcome.exit_code:
            logger.info("the run ended: %s", outcome.message, extra={"exit_code": outcome.exit_code})
        return outcome.exit_code
    return _lead(settings, job, layout, parts, measured)


def _lead(settings: Settings, job: Job, layout: Layout, parts: dict[str, Any], measured: WorkerMetrics) -> int:
    """The chief's work, and the report at its end, whatever the end is."""
    out, fleet, front, run = settings.out, parts["fleet"], parts["front_end"], settings.run
    started = begin(settings)
    events = Events(out, job)
    recorder = Recorder(out, job, layout, Evaluator(front, layout, job.device))
    root = out / "checkpoints"
    extra = {
        "job": job.model_dump(mode="json"),
        "program_folder": str(settings.program_folder),
        "versions": versions(),
    }
    committer = CheckpointCommitter(fleet, job, layout, run, root, extra, parts["stop"])
    measured.duties = Duties(committer, events, recorder)
    finisher = RunFinisher(fleet, job, run, out, recorder, committer, events, started)
    recovery = Recovery(fleet, job, layout, run, root, front.initial_values, extra, events)
    chief = Chief(recovery, committer, finisher, recorder, events, **parts)
    try:
        outcome = chief.run()
        error = chief.error
        if error is None and outcome.exit_code:
            raise _foreign(outcome)
        _write(finisher, chief, out, error)
        if error is not None:
            raise error
        return outcome.exit_code
    except PsfleetError as error:
        if chief.error is None and not _leaves(error, parts["stop"]):
            chief.states = fleet.describe()
            _write(finisher, chief, out, error)
        raise
    finally:
        recorder.close()


def _leaves(error: PsfleetError, stop: Stop) -> bool:
    """Whether the chief ends to make room for its successor, who goes on with the run."""
    return isinstance(error, StoppedError) and stop.must_leave(0)


def _write(finisher: RunFinisher, chief: Chief, out: Path, error: PsfleetError | None) -> None:
    html.publish(finisher.report(chief.states, chief.checkpoint, error), out)


def _foreign(outcome: pb.Outcome) -> PsfleetError:
    """The error of the worker that ended the run, as this process reports it."""
    error = ProgramError(outcome.message, outcome.details)
    error.exit_code = outcome.exit_code
    return error
