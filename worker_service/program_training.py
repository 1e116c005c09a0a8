"""Loads the training program of a run, and trains it as one of its workers or as the chief."""

from __future__ import annotations

import gc
import logging

from psfleet.checkpoint.store_lease import StoreLease
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import DataStallError
from psfleet.job.agreement import job_digest
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from psfleet.tf.gpus import show_gpus
from psfleet.tf.server import boot
from psfleet.tf.towers import tower_devices
from psfleet.tls.data_plane import DataPlane
from worker_service.abandonment import may_abandon_steps
from worker_service.batches import Batches, BatchNumbers
from worker_service.build_deadline import building
from worker_service.chief.leading import lead
from worker_service.dynamic_data import DynamicData
from worker_service.fleet_state import trains_on
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.in_graph.lending_worker import LendingWorker, is_part, lent_batches
from worker_service.live_loaders import LiveLoaders
from worker_service.loader_watch import reached
from worker_service.member_process import MemberProcess
from worker_service.pass_reports import PassReports
from worker_service.program_optimizer import resolved
from worker_service.run_context import RunContext, shares_folder
from worker_service.training_data import TrainingData
from worker_service.worker import Worker
from worker_service.worker_data import Data

logger = logging.getLogger("psfleet.worker")


def train(process: MemberProcess, plane: DataPlane, lease: StoreLease | None) -> int:
    """Loads the program and trains; returns the exit code."""
    settings, job, index = process.settings, process.job, process.index
    function = lent_batches(job, index)
    if not job.fleet.colocate:
        show_gpus(job.device, index)
        reacts = job.fleet.parts > 1 or may_abandon_steps(job)
        boot(plane.own, job.device, job.device.virtual_cpus, reacts_while_computing=reacts)
        plane.check()
    logger.info("building the model and tracing a step", extra={"event": "starting"})
    with building(job.program, job.deadlines.first_secs, process.stall_report(), process.stop):
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
        job_digest=job_digest(process.job),
        update=update,
        is_shared=shares_folder(settings, job),
        lease=lease,
        identity=process.fleet.identity,
        towers=tower_devices(job, index),
    )
    numbers = BatchNumbers(job.update.has_quorum, job.fleet.replicas)
    lends_only = is_part(job, index)
    shard = index % job.fleet.replicas if lends_only else index
    data = _data(program, job, shard, process, plane)
    batches = Batches(data, numbers, job.deadlines, index, process.progress)
    # All objects so far live as long as the process: the collector need not scan them (5 % of a worker's time).
    gc.freeze()
    if index == 0:
        return lead(process, context, front, batches)
    # The chief waits for a worker that lends its device to be ready, but for no other worker's first batch.
    process.progress.await_first_batch(lends_only or function is not None)
    own = (context, front, batches, process.heartbeat, process.progress)
    worker = LendingWorker(*own, function) if lends_only or function is not None else Worker(*own)
    process.controls.bind(worker, context, front, batches, process.progress)
    outcome = worker.run()
    if outcome.exit_code:
        logger.info("the run ended: %s", outcome.message, extra={"exit_code": outcome.exit_code})
    return outcome.exit_code


def _data(program: KerasProgram | GraphProgram, job: Job, index: int, process: MemberProcess, plane: DataPlane) -> Data:
    """The data of a worker; loaders read them if the job has some."""
    fleet = process.fleet
    loaders = reached(process.settings.loaders, plane, fleet.identity)
    live = LiveLoaders(fleet, plane, job.input.num_loaders, len(loaders))
    if job.input.is_dynamic:
        reports = PassReports(fleet, len(loaders), process.progress)
        reports.start()
        return DynamicData(program, job, loaders, fleet.loader_process, reports.counts)
    live.follow()
    return TrainingData.of_worker(program, job, index, loaders, lambda: live.number)


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
