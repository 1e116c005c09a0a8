"""A worker process: joins the run, trains to its end or lends its devices, and reports how it ended."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING

from psfleet.control.credentials import read_identity
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import serving
from psfleet.errors import BadJobError, PsfleetError
from psfleet.job.agreement import common_sections
from psfleet.job.job import Job
from psfleet.job.program_files import digest, job_files
from psfleet.service.logs import log_service
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import data_plane
from worker_service.chief.conclusion import conclude, is_last, saved_final_step
from worker_service.chief.disk import Disk
from worker_service.chief.leasing import leasing
from worker_service.chief.storage_watch import end_if_stuck
from worker_service.controls import Controls
from worker_service.heartbeat import Heartbeat
from worker_service.joining import join
from worker_service.lending import lend
from worker_service.member_process import MemberProcess
from worker_service.metrics import WorkerMetrics

# The fork server calls it: see `psfleet.processes.fork_server.preload`.
from worker_service.preloading import preload as preload
from worker_service.program_training import train
from worker_service.progress import TrainingProgress
from worker_service.run_end import report_failure

if TYPE_CHECKING:
    from ps_service.colocated import ColocatedPs
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.worker")


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
    identity = read_identity(settings.tls, "worker")
    controls = Controls.of(settings)
    with (
        FleetClient(
            settings.ps, settings.run, identity, settings.loaders, job.input.num_loaders,
            "worker" if job.fleet.colocate else "ps",
        ) as fleet,
        _colocated_ps(settings, job, identity, stop) as ps,
        serving(
            settings.address, None if ps is None else ps.servicer, identity, stop.event, stop.probes.note_answer,
            run_control=controls.run, worker_control=controls.worker,
        ),
        exposing(settings, metrics.read if ps is None else lambda: chain(ps.readings(), metrics.read())),
        nullcontext() if ps is None else ps.attended(),
    ):  # fmt: skip
        if settings.index == 0:
            end_if_stuck(disk, job.deadlines.stall_secs, fleet.finish)
        with disk.reading(settings.out):
            saved = saved_final_step(settings)
        if saved is not None and is_last(job, saved, fleet.describe):
            return conclude(settings, fleet, stop, saved)
        files = job_files(job, settings.program_folder)
        common = {**files, **common_sections(job)}
        membership = join(fleet, settings, job, stop, common)
        index, incarnation = membership.member.index, membership.member.incarnation
        log_service(settings.logs_text, run=settings.run, role="worker", index=index)
        logger.info("joined as worker %d", index, extra={"incarnation": incarnation})
        heartbeat = Heartbeat(fleet, index, settings.address, stop, progress, membership.joins, digest(common))
        metrics.add_heartbeat(heartbeat)
        heartbeat.start()
        process = MemberProcess(
            settings, job, fleet, stop, progress, heartbeat, metrics, incarnation, digest(files), disk, controls
        )
        try:
            with leasing(settings.out, job, index, stop, fleet.finish) as lease:
                if index == 0 and stop.must_save() and not process.save_trained():
                    raise stop.error()
                with data_plane(settings, "worker", index, identity) if ps is None else nullcontext(ps.plane) as plane:
                    return train(process, plane, lease)
        except PsfleetError as error:
            report_failure(fleet, error, index, stop)
            raise
        finally:
            heartbeat.close()


def _colocated_ps(
    settings: Settings, job: Job, identity: Identity | None, stop: Stop
) -> AbstractContextManager[ColocatedPs | None]:
    """The ps in this process; None: it is a worker alone, whose image need not have the ps."""
    if not job.fleet.colocate:
        return nullcontext()
    from ps_service.colocated import colocated_ps

    return colocated_ps(settings, job, identity, stop)
