"""A stop before the chief has built its program: the others may have trained meanwhile, which is saved without it.

The ps write the parts of the checkpoint. The layout for its manifest is that of the generation's newest checkpoint.
"""

from __future__ import annotations

import logging

from psfleet.checkpoint.location import root_of
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import newest_committed
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import TemporaryError
from psfleet.job.agreement import job_digest
from psfleet.job.job import Job
from psfleet.report.schema import EventLog
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import Direct
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.last_checkpoint import LastCheckpoint
from worker_service.chief.monitor import Monitor
from worker_service.chief.storage import Storage
from worker_service.fleet_state import TRAINING, States, check_chief, is_complete
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")

SAVE_SECS = 5.0
"""How long the parts of the last step may take to be written, beside the step in progress."""


def is_unsaved(states: States, newest: Checkpoint | None) -> bool:
    """Whether a fleet has made steps of its generation that no checkpoint has.

    Args:
        states: Of the ps, which all train one generation.
        newest: The newest checkpoint.
    """
    known = [state for state in states if state is not None]
    is_of_generation = newest is not None and newest.generation == known[0].generation
    step = max(state.step for state in known)
    return step > (newest.step if newest is not None and is_of_generation else known[0].first_step)


def save_trained(settings: Settings, job: Job, fleet: FleetClient, stop: Stop, incarnation: int, disk: Disk) -> bool:
    """Has the fleet stop at its next step, and commits its checkpoint, if it has made steps that none has.

    Args:
        incarnation: Of this chief, which has joined.

    Returns:
        Whether the run can end better with the program: the final step is made, and must be evaluated; or there are
        unsaved steps, and the layout is not known, or too few workers are left for a further step. Steps that cannot be
        saved for another reason are logged.
    """
    try:
        return _save_trained(settings, job, fleet, stop, incarnation, disk)
    except (TemporaryError, OSError) as error:
        logger.warning("what the fleet has trained since its newest checkpoint is not saved: %s", error)
        return False


def _save_trained(settings: Settings, job: Job, fleet: FleetClient, stop: Stop, incarnation: int, disk: Disk) -> bool:
    states = fleet.describe()
    check_chief(states, incarnation)
    training = [state for state in states if state is not None and state.phase in TRAINING]
    if len(training) < len(states) or len({state.generation for state in training}) != 1:
        return False
    events = Events(settings.out, job, EventLog(settings.out / EventLog.FILE_NAME).num_bytes(), disk)
    storage = Storage(events, job.deadlines.stall_secs)
    with disk.reading(settings.out):
        monitor = Monitor(settings.out, job, storage)
        newest = newest_committed(root_of(settings.out, job))
    is_final = is_complete(states) and min(state.step for state in training) >= monitor.final_step
    if not is_unsaved(states, newest):
        return is_final
    generation = training[0].generation
    if newest is None or newest.generation != generation or not _can_stop(training[0], job):
        logger.warning("the steps since the newest checkpoint can be saved only with the program")
        return True
    context = RunContext(
        run=settings.run,
        index=0,
        incarnation=incarnation,
        job=job,
        layout=newest.layout,
        tasks=Direct(settings.address, settings.ps),
        fleet=fleet,
        stop=stop,
        out=settings.out,
        job_digest=job_digest(job),
    )
    committer = CheckpointCommitter(context, {**newest.extra, "incarnation": incarnation}, storage, monitor)
    last = LastCheckpoint(context, committer, disk, SAVE_SECS + job.deadlines.step_secs)
    return last.commit(generation).step >= monitor.final_step


def _can_stop(state: pb.ShardState, job: Job) -> bool:
    """Whether the step in progress ends without the chief, or the last step is made.

    Args:
        state: Of ps 0.
    """
    others = sum(worker.is_alive for worker in state.workers if worker.index != 0)
    return state.phase == pb.COMPLETE or others >= job.least_workers
