"""Ends a run: waits for the last checkpoint, verifies it, collects the final counts, and makes the report."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import DONE, PsfleetError, StoppedError
from psfleet.polling import wait_until
from psfleet.report.last_evaluation import SKIPPED, not_in_time
from psfleet.report.measurements import StepSecs
from psfleet.report.schema import CheckpointInfo, Event, Report
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.last_checkpoint import LastCheckpoint
from worker_service.chief.ps_counts import gradients_of, placement_of, staleness_of
from worker_service.chief.recorder import Recorder
from worker_service.chief.run_attempt import Attempt
from worker_service.chief.storage import Storage
from worker_service.fleet_state import States
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")

PACKAGES = ("psfleet", "tensorflow-cpu", "tensorflow", "keras", "numpy", "grpcio")
EVALUATION_SECS = 3.0
"""Time that a signal leaves to the final evaluation."""
LEAVE_SECS = 2.0
"""Time for the workers to end their last step, so that the counts of gradients are final."""


class RunFinisher:
    """What the chief does once every shard has reached the final step, and for the report of any run.

    Args of the constructor:
        attempt: Of the run.
    """

    def __init__(
        self,
        context: RunContext,
        recorder: Recorder,
        committer: CheckpointCommitter,
        storage: Storage,
        attempt: Attempt,
    ) -> None:
        self._context = context
        self._job = context.job
        self._recorder = recorder
        self._committer = committer
        self._storage = storage
        self._events = storage.events
        self._attempt = attempt
        self._secs_before = max(0.0, time.time() - attempt.started)
        self._began = time.monotonic()
        self._last = LastCheckpoint(context, committer, storage.disk)
        self._saved: Report | None = None

    def commit_last(self, generation: int, is_moved: Callable[[States], bool] = lambda states: False) -> Checkpoint:
        """Waits for the checkpoint of the last step; see `LastCheckpoint.commit`."""
        return self._last.commit(generation, is_moved)

    def final_states(self, step: int) -> States:
        """The states of the ps once every live worker has ended its last step, or after `LEAVE_SECS`."""

        def poll() -> States:
            return self._context.fleet.describe()

        def have_left(states: States) -> bool:
            workers = [worker for state in states if state is not None for worker in state.workers]
            return all(worker.step >= step or not worker.is_alive for worker in workers)

        try:
            return wait_until(poll, LEAVE_SECS, "the workers to leave the last step", done=have_left, poll_secs=0.05)
        except PsfleetError as error:
            logger.warning("%s", error)
            return self._context.fleet.describe()

    def count_examples(self, step: int) -> None:
        """Collects from the loaders what each live worker was given up to its last step, for `LEAVE_SECS` at most."""
        epochs = self._recorder.data_epochs

        def poll() -> bool:
            epochs.note(self._context.fleet.describe_loaders())
            return epochs.has_counts(step)

        try:
            wait_until(poll, LEAVE_SECS, "the workers to report the examples of the last step", poll_secs=0.05)
        except PsfleetError as error:
            logger.warning("%s", error)
        epochs.end()

    def report(self, states: States, checkpoint: Checkpoint | None, error: PsfleetError | None = None) -> Report:
        """Makes the report; evaluates the checkpoint if the run is done.

        Raises:
            ProgramError: The evaluation failed.
            StoppedError: A signal asked this chief to leave before its end; another one replaces it.
        """
        if error is not None or checkpoint is None:
            self._store_best()
            return self._attempt.entry_in(self._draft(states, checkpoint, error))
        return self._evaluated(self._saved or self._draft(states, checkpoint, None), checkpoint)

    def save_draft(self, states: States, checkpoint: Checkpoint) -> None:
        """Writes the report without a final evaluation.

        Called before `Finish` is sent to the ps: they end then, and no chief that replaces this one can read their
        counts. A chief that has been replaced meanwhile writes nothing.
        """
        self._saved = self._draft(states, checkpoint, None)
        with self._storage.writing("the report before the final evaluation"):
            if self._attempt.is_newest():
                self._saved.write(self._context.out, Report.DRAFT_NAME)

    def resumed_report(self, checkpoint: Checkpoint) -> Report:
        """As `report` for a chief that replaces one which died after the run's last checkpoint was verified.

        The counts are those of that chief's draft; zeros if it wrote none.
        """
        try:
            with self._storage.disk.reading(self._context.out / Report.DRAFT_NAME):
                draft = Report.read(self._context.out, Report.DRAFT_NAME)
        except PsfleetError:
            return self.report([], checkpoint)
        if draft.checkpoint is None or draft.checkpoint.step != checkpoint.step:
            return self.report([], checkpoint)
        return self._evaluated(draft, checkpoint)

    def _evaluated(self, draft: Report, checkpoint: Checkpoint) -> Report:
        """The report of a run that is done; without the metrics of its last step if a signal ends their evaluation."""
        if not self._recorder.evaluate_last(checkpoint, self._evaluation_ends()):
            stop = self._context.stop
            if stop.must_leave(self._context.index):
                raise stop.error()
            self._events.add("chief", 0, SKIPPED, not_in_time(checkpoint.step, str(stop.error())))
        self._recorder.monitor.store_best()
        if self._job.evaluates_checkpoints:
            # None waits for an evaluation any more.
            self._committer.prune()
        events = self._events.all()
        update = {
            "eval": self._recorder.metrics,
            "best": self._recorder.monitor.best,
            "seconds": self._seconds(),
            "events": events,
            "restarts": _restarts(events),
        }
        return self._attempt.entry_in(draft.model_copy(update=update))

    def _store_best(self) -> None:
        """See `Monitor.store_best`; a chief that has been replaced stores nothing."""
        with self._storage.disk.reading(self._context.out):
            is_newest = self._attempt.is_newest()
        if is_newest:
            self._recorder.monitor.store_best()

    def _evaluation_ends(self) -> Callable[[], bool]:
        """A function that returns whether a signal came `EVALUATION_SECS` ago, as far as its calls have seen."""
        ends_at = math.inf

        def is_over() -> bool:
            nonlocal ends_at
            if self._context.stop.event.is_set():
                ends_at = min(ends_at, time.monotonic() + EVALUATION_SECS)
            return time.monotonic() >= ends_at

        return is_over

    def _early_stop(self, checkpoint: Checkpoint | None) -> str | None:
        """Why training ended at a checkpoint before the final step, which is an event too; None: it did not."""
        decision = self._recorder.monitor.decision
        if checkpoint is None or decision is None or checkpoint.step >= self._job.train.steps:
            return None
        self._recorder.monitor.record_stop(checkpoint.step)
        return decision.reason

    def _seconds(self) -> float:
        """Since the attempt started; within one process it does not depend on changes of the clock."""
        return self._secs_before + time.monotonic() - self._began

    def _draft(self, states: States, checkpoint: Checkpoint | None, error: PsfleetError | None) -> Report:
        """The report without a final evaluation."""
        code = DONE if error is None else error.exit_code
        status = "done" if error is None else "stopped" if isinstance(error, StoppedError) else "failed"
        recorder = self._recorder
        if isinstance(error, StoppedError):
            checkpoint = checkpoint or self._committer.newest
        known = [state for state in states if state is not None]
        early = self._early_stop(checkpoint) if error is None else None
        events = self._events.all()
        return Report(
            status=status,
            exit_code=code,
            error=str(error) if error else None,
            stopped_early=early,
            name=self._job.name,
            run=self._context.run,
            mode=self._job.update.mode,
            target_step=self._job.train.steps,
            final_step=max([state.step for state in known] + [checkpoint.step if checkpoint else 0]),
            generation=max([state.generation for state in known] + [checkpoint.generation if checkpoint else 0]),
            seconds=self._seconds(),
            training_seconds=recorder.training_secs,
            examples_per_sec=recorder.examples_per_sec(),
            step_secs=StepSecs(p50=recorder.quantile_secs(0.5), p95=recorder.quantile_secs(0.95)),
            loss=recorder.loss,
            losses=recorder.losses,
            eval=recorder.metrics,
            training_metrics=recorder.newest_training_metrics(),
            gradients=gradients_of(states, recorder.worker_examples_per_sec()),
            staleness=staleness_of(states),
            placement=placement_of(states),
            data=recorder.data_epochs.record(),
            restarts=_restarts(events),
            events=events,
            checkpoint=CheckpointInfo(path=str(checkpoint.folder), step=checkpoint.step) if checkpoint else None,
            best=recorder.monitor.best,
            versions=dict(versions()),
        )


@functools.cache
def versions() -> Mapping[str, str]:
    """The versions of psfleet and of the packages that it trains with, by name."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _restarts(events: Sequence[Event]) -> int:
    return sum(event.kind == "restarted" for event in events)
