"""What the chief is made of: one object for each of its duties."""

from __future__ import annotations

from dataclasses import dataclass

from psfleet.callbacks import RunInfo
from psfleet.callbacks.loading import load_callbacks
from psfleet.job.job import Job
from psfleet.job.program_files import PROGRAM_DIGEST
from psfleet.run_folder import CALLBACKS
from psfleet.service.settings import Settings
from worker_service.chief.callbacks import Callbacks
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.holding import Holding
from worker_service.chief.loader_restarts import LoaderRestarts
from worker_service.chief.monitor import Monitor
from worker_service.chief.readable import once_readable
from worker_service.chief.recorder import Recorder
from worker_service.chief.recovery import Recovery
from worker_service.chief.run_attempt import Attempt, begin, is_first
from worker_service.chief.run_finisher import RunFinisher, versions
from worker_service.chief.storage import Storage
from worker_service.evaluation import Evaluator
from worker_service.fleet_state import check_chief
from worker_service.frontends import FrontEnd
from worker_service.run_context import RunContext


@dataclass(frozen=True)
class ChiefComponents:
    """What the chief has in addition to a worker."""

    recovery: Recovery
    committer: CheckpointCommitter
    finisher: RunFinisher
    recorder: Recorder
    events: Events
    storage: Storage
    attempt: Attempt
    holding: Holding
    callbacks: Callbacks


def chief_components(
    settings: Settings, context: RunContext, front: FrontEnd, program: str = "", disk: Disk | None = None
) -> ChiefComponents:
    """Makes the components of this chief process, and removes what only an earlier attempt needs.

    Args:
        settings: Of this process.
        context: Of the run.
        front: The program's front end.
        program: The digest of the training program.
        disk: Knows what this process waits for on the disk; None: one of its own, which nothing watches.

    Raises:
        ReplacedError: Another process is the chief now.
        BadJobError: A callback needs a package that is not installed.
        ProgramError: A callback cannot be made.
        StorageError: The checkpoints cannot be read for `deadlines.stall_secs`.
        StoppedError: A signal came meanwhile.
    """
    # Before it removes files of an earlier attempt: loading the program took time.
    check_chief(context.fleet.describe(), context.incarnation)
    disk = disk or Disk()
    with disk.reading(context.out):
        is_successor = not is_first(settings)
        attempt = begin(settings, context.job)
    manifest_extra = {
        "job": context.job.model_dump(mode="json"),
        "program_folder": str(settings.program_folder),
        PROGRAM_DIGEST: program,
        "versions": dict(versions()),
        "incarnation": context.incarnation,
    }
    events = Events(context.out, context.job, attempt.first_event, disk)
    evaluator = Evaluator(front, context.layout, context.job)
    storage = Storage(events, context.job.deadlines.stall_secs)
    callbacks = Callbacks(load_callbacks(context.job), events, run_info(settings, context.job), context.job.callbacks)
    holding = Holding(context.out, disk, context.job.update)
    monitor = _monitor(context, storage, callbacks, attempt.first_step if is_successor else None)
    with disk.reading(context.out):
        trained_secs = attempt.trained_secs()
    recorder = Recorder(context.out, context.job, context.layout, evaluator, storage, monitor, trained_secs)
    if settings.loaders:
        LoaderRestarts(context.fleet, events, epochs=recorder.data_epochs).follow()
    committer = CheckpointCommitter(context, manifest_extra, storage, monitor)
    return ChiefComponents(
        recovery=Recovery(context, front.initial_values, manifest_extra, events, monitor, holding, attempt.started),
        committer=committer,
        finisher=RunFinisher(context, recorder, committer, storage, attempt),
        recorder=recorder,
        events=events,
        storage=storage,
        attempt=attempt,
        holding=holding,
        callbacks=callbacks,
    )


def _monitor(context: RunContext, storage: Storage, callbacks: Callbacks, lost_from: int | None) -> Monitor:
    """The monitor, once the checkpoints can be read: the metrics in their folders decide which one is the best."""

    def read() -> Monitor:
        with storage.disk.reading(context.out):
            return Monitor(context.out, context.job, storage, callbacks, lost_from)

    return once_readable(read, context.job.deadlines.stall_secs, context.stop)


def run_info(settings: Settings, job: Job) -> RunInfo:
    """What the callbacks know of the run before its first step."""
    return RunInfo(job.name, settings.run, job.model_dump(mode="json"), settings.out, settings.out / CALLBACKS, step=0)
