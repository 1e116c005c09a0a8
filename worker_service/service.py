"""A worker process: joins the run, loads the program, trains to the end of the run; the chief writes the report."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

from psfleet.checkpoint.store_lease import StoreLease
from psfleet.control.credentials import read_identity
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.errors import BadJobError, DataStallError, PsfleetError, StoppedError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from psfleet.job.program_files import digest, job_files
from psfleet.service.logs import log_service
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.gpus import show_gpus
from psfleet.tf.server import boot
from psfleet.tf.towers import tower_devices
from psfleet.tls.data_plane import DataPlane, data_plane
from worker_service.batches import Batches, BatchNumbers
from worker_service.build_deadline import building
from worker_service.chief.chief import Chief
from worker_service.chief.components import chief_components
from worker_service.chief.conclusion import conclude, is_last, saved_final_step
from worker_service.chief.disk import Disk
from worker_service.chief.failure_report import publish_failure
from worker_service.chief.leasing import leasing
from worker_service.chief.report_publishing import publish
from worker_service.chief.storage_watch import end_if_stuck
from worker_service.chief.unbuilt_stop import save_trained
from worker_service.controls import Controls
from worker_service.fleet_state import check_chief, trains_on
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.heartbeat import Heartbeat
from worker_service.in_graph.lending_worker import LendingWorker, is_part, lent_batches
from worker_service.joining import join
from worker_service.lending import lend
from worker_service.loader_watch import reached
from worker_service.metrics import WorkerMetrics
from worker_service.preloading import preload as preload
from worker_service.program_optimizer import resolved
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext, shares_folder
from worker_service.run_end import is_replaced, report_failure, worker_error
from worker_service.training_data import TrainingData
from worker_service.worker import Worker

logger = logging.getLogger("psfleet.worker")


@dataclass(frozen=True)
class _Process:
    """This process, once it has an index; `program` is the digest of its training program.

    `disk` is its chief's.
    """

    settings: Settings
    job: Job
    fleet: FleetClient
    stop: Stop
    progress: TrainingProgress
    heartbeat: Heartbeat
    metrics: WorkerMetrics
    incarnation: int
    program: str
    disk: Disk
    controls: Controls

    def save_trained(self) -> bool:
        """Saves what the fleet has trained without this chief, which stops; see `unbuilt_stop`."""
        return save_trained(self.settings, self.job, self.fleet, self.stop, self.incarnation, self.disk)


def serve(settings: Settings, stop: Stop) -> int:
    """Trains until the run is over, or lends its devices if it belongs to a standing fleet; returns the exit code.

    Raises:
        PsfleetError: What ended this worker before the run's end.
    """
    if settings.fleet is not None:
        return lend(settings, stop)
    if settings.job is None or not settings.ps or not settings.run:
        raise BadJobError("PSFLEET_JOB, PSFLEET_PS and PSFLEET_RUN are missing, expected all three")
    job, progress, disk = settings.job, TrainingProgress(), Disk()
    metrics = WorkerMetrics(settings.run, job, progress)
    identity, controls = read_identity(settings.tls, "worker"), Controls.of(settings)
    with (
        FleetClient(settings.ps, settings.run, identity, settings.loaders) as fleet,
        serving(
            settings.address, None, identity, stop.event, stop.probes.note_answer,
            run_control=controls.run, worker_control=controls.worker,
        ),
        exposing(settings, metrics.read),
    ):  # fmt: skip
        if settings.index == 0:
            end_if_stuck(disk, job.deadlines.stall_secs, fleet.finish)
        with disk.reading(settings.out):
            saved = saved_final_step(settings)
        if saved is not None and is_last(job, saved, fleet.describe):
            return conclude(settings, fleet, stop, saved)
        files = job_files(job, settings.program_folder)
        membership = join(fleet, settings, job, stop, files)
        index, incarnation = membership.member.index, membership.member.incarnation
        log_service(settings.logs_text, run=settings.run, role="worker", index=index)
        logger.info("joined as worker %d", index, extra={"incarnation": incarnation})
        heartbeat = Heartbeat(fleet, index, settings.address, stop, progress, membership.joins, digest(files))
        metrics.add_heartbeat(heartbeat)
        heartbeat.start()
        process = _Process(
            settings, job, fleet, stop, progress, heartbeat, metrics, incarnation, digest(files), disk, controls
        )
        try:
            with leasing(settings.out, job, index, stop, fleet.finish) as lease:
                if index == 0 and stop.must_save() and not process.save_trained():
                    raise stop.error()
                with data_plane(settings, "worker", index, identity) as plane:
                    return _train(process, plane, lease)
        except PsfleetError as error:
            report_failure(fleet, error, index, stop)
            raise
        finally:
            heartbeat.close()


def _train(process: _Process, plane: DataPlane, lease: StoreLease | None) -> int:
    """Loads the program and trains; returns the exit code."""
    settings, job, index = process.settings, process.job, process.heartbeat.index
    function = lent_batches(job, index)
    show_gpus(job.device, index)
    boot(plane.own, job.device, job.device.virtual_cpus, has_parts=job.fleet.parts > 1)
    plane.check()
    logger.info("building the model and tracing a step", extra={"event": "starting"})
    with building(job.program, job.deadlines.first_secs, _stall_report(process), process.stop):
        program = load_program(job, settings.program_folder)
        front = _front_end(program, job, index, process.fleet)
        # Only the chief configures the ps; in averaging mode each worker applies the optimizer.
        applies = index == 0 or job.update.mode == "averaging"
        job, update = resolved(program, job, front.parameters) if applies else (job, None)
    layout = planned(front, job)
    process.metrics.add_layout(layout, index, update)
    context = RunContext(
        run=settings.run,
        index=index,
        incarnation=process.incarnation,
        job=job,
        layout=layout,
        tasks=plane,
        fleet=process.fleet,
        stop=process.stop,
        out=settings.out,
        update=update,
        is_shared=shares_folder(settings, job),
        lease=lease,
        identity=process.fleet.identity,
        towers=tower_devices(job, index),
    )
    numbers = BatchNumbers(job.update.has_quorum, job.fleet.replicas)
    lends_only = is_part(job, index)
    shard = index % job.fleet.replicas if lends_only else index
    data = TrainingData.of_worker(program, job, shard, reached(settings.loaders, plane, process.fleet.identity))
    batches = Batches(data, numbers, job.deadlines, index, process.progress)
    # All objects so far live as long as the process: the collector need not scan them (5 % of a worker's time).
    gc.freeze()
    if index == 0:
        return _lead(process, context, front, batches)
    # The chief waits for a worker that lends its device to be ready, but for no other worker's first batch.
    process.progress.reading_first_batch = lends_only or function is not None
    own = (context, front, batches, process.heartbeat, process.progress)
    worker = LendingWorker(*own, function) if lends_only or function is not None else Worker(*own)
    process.controls.bind(worker, context, front, batches, process.progress)
    outcome = worker.run()
    if outcome.exit_code:
        logger.info("the run ended: %s", outcome.message, extra={"exit_code": outcome.exit_code})
    return outcome.exit_code


def _stall_report(process: _Process) -> Callable[[DataStallError | StoppedError], None]:
    """A function that ends the run, unless a program stalls while the fleet trains on; a stop saves before it."""
    before = process.fleet.describe()

    def report(error: DataStallError | StoppedError) -> None:
        if isinstance(error, DataStallError):
            error.ends_run = not trains_on(before, process.fleet.describe())
        try:
            if isinstance(error, StoppedError) and process.heartbeat.index == 0 and process.stop.must_save():
                process.save_trained()
        finally:
            # Also if nothing could be saved: the others would wait for this chief.
            report_failure(process.fleet, error, process.heartbeat.index, process.stop)

    return report


def _front_end(program: KerasProgram | GraphProgram, job: Job, index: int, fleet: FleetClient) -> FrontEnd:
    """The program's front end.

    Raises:
        ProgramError: The program failed.
        DataStallError: A function of the program did not return in time. It ends the run unless the fleet has trained
            meanwhile.
    """
    before = fleet.describe()
    try:
        return front_end(program, job, job.fleet.replicas, index)
    except DataStallError as error:
        error.ends_run = not trains_on(before, fleet.describe())
        raise


def _lead(process: _Process, context: RunContext, front: FrontEnd, batches: Batches) -> int:
    """Trains as the chief, and writes the report, however the run ends; returns the exit code."""
    job = process.job
    # The job's callbacks are code of the program, too.
    with building(job.program, job.deadlines.first_secs, _stall_report(process), process.stop):
        components = chief_components(process.settings, context, front, process.program, process.disk)
    process.metrics.add_chief(components)
    chief = Chief(context, front, batches, process.heartbeat, process.progress, components)
    process.controls.bind(chief, context, front, batches, process.progress)
    process.controls.bind_chief(chief, context, process.heartbeat, components)
    try:
        outcome = chief.run()
        error = chief.error
        if error is None and outcome.exit_code:
            raise worker_error(outcome)
        if error is not None:
            # The chief has informed the ps.
            error.is_reported = True
            publish_failure(chief, context, components, error, [], num_informed=0)
            raise error
        report = chief.report(None)
        publish(report, context.out, job, components.storage, context.require_lease, is_required=True)
        components.callbacks.end(report)
        return outcome.exit_code
    except PsfleetError as error:
        if chief.error is None and not is_replaced(error, process.stop):
            states = context.fleet.describe()
            check_chief(states, context.incarnation)
            # Before the report: ps 0 refuses a chief that was replaced, however long it was frozen since the check.
            num_informed = report_failure(context.fleet, error, 0, process.stop)
            publish_failure(chief, context, components, error, states, num_informed)
        raise
    finally:
        components.recorder.close()
