"""Ends a run whose final step is saved already: a chief died after that, and this process replaces it. Needs no ps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from psfleet.callbacks import Callback
from psfleet.callbacks.loading import load_callbacks
from psfleet.checkpoint.location import root_of
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import newest_from
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.tensors import check_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control.client import CALL_SECS
from psfleet.control.fleet_client import FINISH_SECS, RELEASE_SECS, FleetClient
from psfleet.errors import DONE, PsfleetError, StoppedError
from psfleet.job.agreement import job_digest
from psfleet.job.job import Job
from psfleet.job.program import load_program
from psfleet.layout import Layout
from psfleet.report.schema import Report
from psfleet.service.logs import log_service
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import Direct
from worker_service.build_deadline import building
from worker_service.chief.callbacks import Callbacks
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.components import run_info
from worker_service.chief.disk import Disk
from worker_service.chief.early_stopping import final_step, recorded
from worker_service.chief.events import Events
from worker_service.chief.monitor import Monitor
from worker_service.chief.recorder import Recorder
from worker_service.chief.report_publishing import publish
from worker_service.chief.run_attempt import begin, is_first
from worker_service.chief.run_finisher import RunFinisher
from worker_service.chief.storage import Storage
from worker_service.chief.storage_watch import end_if_stuck
from worker_service.evaluation import Evaluator
from worker_service.fleet_state import TRAINING, States, outcome_of
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.joining import finish_as_chief
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")


def saved_final_step(settings: Settings) -> Checkpoint | None:
    """The verified checkpoint of the final step, if this chief replaces one; None: there is training to do.

    A decision of early stopping in `evaluations.jsonl` makes its step the final one; see also `is_last`.
    One beyond `train.steps` is of another fleet that has used the store: this chief joins, and its recovery refuses it.
    """
    if settings.job is None or settings.index != 0 or is_first(settings):
        return None
    evaluations = recorded(settings.out, settings.job)
    try:
        found = newest_from(root_of(settings.out, settings.job), final_step(settings.job, evaluations))
        return None if found is not None and found.step > settings.job.train.steps else found
    except StoreError as error:
        # The ps still know the run: this chief joins it, and waits for the store there.
        logger.warning("whether the final step is saved is not known: %s", error)
        return None


def is_last(job: Job, checkpoint: Checkpoint, describe: Callable[[], States]) -> bool:
    """Whether a checkpoint of `saved_final_step` is the last one of its run: no ps trains on after an early stop.

    Args:
        job: Of the run.
        checkpoint: Verified.
        describe: Returns the states of the ps; not called for a checkpoint of the final step, which needs no ps.
    """
    if checkpoint.step >= job.train.steps:
        return True
    states = describe()
    if outcome_of(states) is not None:
        return True
    return all(state is None or state.phase not in TRAINING for state in states)


def conclude(settings: Settings, fleet: FleetClient, stop: Stop, checkpoint: Checkpoint) -> int:
    """Evaluates a verified checkpoint of the final step and writes the report, without any ps; the exit code.

    Ps and workers that still wait for the end of the run receive the outcome meanwhile.

    Raises:
        ProgramError: The program cannot be loaded, or its evaluation failed; the report says so.
        BadJobError: The checkpoint is of another model than the program's; the report says so.
        DeadlineError: The evaluation took too long; the report says so.
    """
    job = settings.job
    assert job is not None, "saved_final_step() found its checkpoint"
    log_service(settings.logs_text, run=settings.run, role="worker", index=0)
    message = f"step {checkpoint.step} is saved and verified"
    logger.info("%s: the report remains", message, extra={"event": "verified", "step": checkpoint.step})
    disk = Disk()
    end_if_stuck(disk, job.deadlines.stall_secs, lambda outcome: None)
    conclusion = _Conclusion(settings, job, fleet, stop, checkpoint, disk)
    try:
        with building(job.program, job.deadlines.first_secs, conclusion.report_failure):
            front, layout = _load(settings, job, checkpoint)
    except PsfleetError as error:
        conclusion.report_failure(error)
        failure = pb.Outcome(exit_code=error.exit_code, message=str(error), details=error.details)
        # It would join as the newest chief: one that was frozen must not end the run of another.
        with disk.reading(settings.out):
            is_newest = conclusion.attempt.is_newest()
        if is_newest:
            finish_as_chief(fleet, settings, job, failure)
        raise
    outcome = pb.Outcome(exit_code=DONE, message=message)
    finishing = threading.Thread(
        target=finish_as_chief, args=(fleet, settings, job, outcome), name="finish", daemon=True
    )
    finishing.start()
    conclusion.report(front, layout)
    finishing.join(FINISH_SECS + CALL_SECS + RELEASE_SECS)
    return DONE


def _load(settings: Settings, job: Job, checkpoint: Checkpoint) -> tuple[FrontEnd, Layout]:
    """The program and its layout, which the checkpoint fits."""
    front = front_end(load_program(job, settings.program_folder), job, job.fleet.replicas, 0)
    layout = planned(front, job)
    check_tensors(checkpoint, layout)
    return front, layout


class _Conclusion:
    """Writes the report of a run whose final step is saved."""

    def __init__(
        self, settings: Settings, job: Job, fleet: FleetClient, stop: Stop, checkpoint: Checkpoint, disk: Disk
    ) -> None:
        self._settings, self._job, self._fleet, self._stop = settings, job, fleet, stop
        self._checkpoint = checkpoint
        with disk.reading(settings.out):
            self.attempt = begin(settings)
        self._events = Events(settings.out, job, self.attempt.first_event, disk)
        self.storage = Storage(self._events, job.deadlines.stall_secs)
        self._events.add("chief", 0, "restarted", settings.cause or "it was replaced")

    def report(self, front: FrontEnd, layout: Layout) -> None:
        """Evaluates the checkpoint and writes the report, of a failure too.

        Raises:
            StoppedError: Another chief replaces this one, and reports.
        """
        evaluator = Evaluator(front, layout, self._job)
        callbacks = self._callbacks()
        callbacks.start(self._checkpoint.step)
        with self.storage.disk.reading(self._settings.out):
            monitor = Monitor(self._settings.out, self._job, self.storage, callbacks)
        recorder = Recorder(self._settings.out, self._job, layout, evaluator, self.storage, monitor)
        try:
            report = self._finisher(recorder, layout).resumed_report(self._checkpoint)
            publish(report, self._settings.out, self._job, self.storage, is_required=True)
            callbacks.end(report)
        except StoppedError:
            raise
        except PsfleetError as error:
            failure = self.report_failure(error)
            if failure is not None:
                callbacks.end(failure)
            raise
        finally:
            recorder.close()

    def _callbacks(self) -> Callbacks:
        """The job's callbacks; none if they cannot be made, which does not undo a run that is saved."""
        made: list[Callback] = []
        try:
            with building(self._job.program, self._job.deadlines.first_secs, self.report_failure):
                made = load_callbacks(self._job)
        except PsfleetError as error:
            self._events.add("chief", 0, "callback_failed", str(error))
        return Callbacks(made, self._events, run_info(self._settings, self._job), self._job.callbacks)

    def report_failure(self, error: PsfleetError) -> Report | None:
        """Writes the report of a failure, and returns it; None: another report says that the run is done."""
        with self.storage.disk.reading(self._settings.out):
            may_report = self.attempt.may_report_failure([])
        if not may_report:
            logger.warning("not reported, the run is done or has a newer chief: %s", error)
            return None
        layout = Layout.plan([], [], [], self._job.fleet.ps, self._job.update.bucket_bytes)
        recorder = Recorder(self._settings.out, self._job, layout, None, self.storage)
        report = self._finisher(recorder, layout).report([], self._checkpoint, error)
        publish(report, self._settings.out, self._job, self.storage, is_required=False)
        return report

    def _finisher(self, recorder: Recorder, layout: Layout) -> RunFinisher:
        settings = self._settings
        context = RunContext(
            run=settings.run,
            index=0,
            incarnation=0,
            job=self._job,
            layout=layout,
            tasks=Direct(settings.address, settings.ps),
            fleet=self._fleet,
            stop=self._stop,
            out=settings.out,
            job_digest=job_digest(self._job),
        )
        committer = CheckpointCommitter(context, {}, self.storage, recorder.monitor)
        return RunFinisher(context, recorder, committer, self.storage, self.attempt)
