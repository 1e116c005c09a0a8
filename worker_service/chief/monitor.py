"""What the evaluations of a run decide: the best checkpoint, early stopping, reductions of the learning rate."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from psfleet.checkpoint import evaluated
from psfleet.checkpoint.evaluated import Evaluated
from psfleet.checkpoint.location import Folder, root_of
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import committed_checkpoints
from psfleet.job.job import Job
from psfleet.job.watched_metrics import require_metrics
from psfleet.report.last_evaluation import SKIPPED
from psfleet.report.schema import BestInfo, Evaluation, EvaluationLog
from worker_service.chief.callbacks import Callbacks
from worker_service.chief.early_stopping import StopDecision, decide, recorded
from worker_service.chief.lost_evaluations import lost_steps
from worker_service.chief.rate_reductions import RateReductions
from worker_service.chief.storage import Storage

logger = logging.getLogger("psfleet.chief")

EARLY_STOP = "early_stop"
"""Kind of the event that records that a decision of `evaluate.stop` ends training before the final step."""


MAX_DUE = 10
"""Checkpoints that may wait for the chief to evaluate them; it does not while it reads old batches after a restart."""
TOO_LATE = f"more than {MAX_DUE} checkpoints wait to be evaluated: the oldest ones are not evaluated"


class Monitor:
    """Records evaluations, and knows the best checkpoint and the decision to stop; from any thread.

    With `checkpoint.best` it also holds the checkpoints that are due to be evaluated. All of it is derived from files,
    `evaluations.jsonl` and the metrics in the folders of checkpoints: a chief that replaces another, and a run that
    resumes, have the same best checkpoint and the same count of evaluations.

    Args of the constructor:
        lost_from: The step from which on an earlier chief of this attempt has evaluated; None: there was none, or it is
            not known.

    Raises (from the constructor):
        BadJobError: See `early_stopping.recorded`.

    Attributes:
        callbacks: Receive the progress of the run.
        reductions: Of the learning rate, by a plateau schedule.
    """

    def __init__(
        self, out: Path, job: Job, storage: Storage, callbacks: Callbacks | None = None, lost_from: int | None = None
    ) -> None:
        self.callbacks = callbacks or Callbacks([], storage.events)
        self._job = job
        self._storage = storage
        self._log = EvaluationLog(out / EvaluationLog.FILE_NAME)
        self._lock = threading.Lock()
        self._evaluations = recorded(out, job)
        self._unsaved: list[Evaluation] = []
        self._decision = decide(job, self._evaluations)
        self.reductions = RateReductions(out, job, storage, self._recorded)
        self._due: list[Checkpoint] = []
        self._pending: dict[int, Checkpoint] = {}
        self._best: Evaluated | None = None
        self._is_best_stored = True
        self._lost_from = lost_from
        if job.checkpoint.best is not None:
            checkpoints = list(committed_checkpoints(root_of(out, job)))
            found = evaluated.evaluated(checkpoints)
            self._best = evaluated.best(found, job.checkpoint.best)
            for checkpoint in evaluated.not_reached(checkpoints, found):
                self._await_evaluation(checkpoint)

    @property
    def decision(self) -> StopDecision | None:
        """The decision to end training early; None: it continues."""
        with self._lock:
            return self._decision

    @property
    def final_step(self) -> int:
        """The step from which on a checkpoint is the last one of the run."""
        decision = self.decision
        return self._job.train.steps if decision is None else decision.step

    @property
    def best(self) -> BestInfo | None:
        """The best checkpoint, for the report."""
        watched = self._job.checkpoint.best
        with self._lock:
            if self._best is None or watched is None:
                return None
            checkpoint, value = self._best.checkpoint, self._best.metrics[watched.metric]
        return BestInfo(metric=watched.metric, value=value, step=checkpoint.step, path=str(checkpoint.folder))

    def record_stop(self, step: int) -> None:
        """Adds the event of an early stop, once for the attempt, if the decision ends training at a step.

        Not when it is made: the last evaluation before the final step can decide when every ps has made that step.
        """
        decision = self.decision
        if decision is None or not decision.step <= step < self._job.train.steps:
            return
        if all(event.kind != EARLY_STOP for event in self._storage.events.all()):
            self._storage.events.add("chief", 0, EARLY_STOP, decision.reason)

    def committed(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is complete; it is evaluated if checkpoints are, and if an evaluation of its step is due."""
        self.callbacks.saved(checkpoint.step, checkpoint.folder)
        self._await_evaluation(checkpoint)

    def _await_evaluation(self, checkpoint: Checkpoint) -> None:
        every = self._job.evaluate.every_steps
        if not self._job.evaluates_checkpoints or every is None:
            return
        if 0 < checkpoint.step < self._job.train.steps and checkpoint.step % every == 0:
            with self._lock:
                self._expect(checkpoint)
                self._due.append(checkpoint)
                dropped, self._due = self._due[:-MAX_DUE], self._due[-MAX_DUE:]
                for each in dropped:
                    self._pending.pop(each.step, None)
            if dropped:
                self._storage.failed("evaluations", TOO_LATE, SKIPPED)

    def take_due(self) -> list[Checkpoint]:
        """The checkpoints to be evaluated, the oldest first; each once."""
        with self._lock:
            due, self._due = self._due, []
            return due

    def begin_last(self, checkpoint: Checkpoint) -> None:
        """The last checkpoint of the run is going to be evaluated."""
        with self._lock:
            self._expect(checkpoint)

    def generation_of(self, step: int, own: int) -> int:
        """The generation of the weights that are evaluated at a step: of its checkpoint, or else of the chief's own."""
        with self._lock:
            return self._pending[step].generation if step in self._pending else own

    def lost(self, generation: int, first_step: int, step: int) -> list[int]:
        """See `lost_steps`; none after the first call."""
        start, self._lost_from = self._lost_from, None
        if start is None:
            return []
        with self._lock:
            return lost_steps(self._job, self._evaluations, start, generation, first_step, step)

    def skipped(self, step: int) -> None:
        """The evaluation of a step is not made."""
        with self._lock:
            self._pending.pop(step, None)

    def protected(self) -> set[Folder]:
        """Folders of the checkpoints that must not be deleted: the best one, and those that are yet to be evaluated."""
        with self._lock:
            kept = [*self._pending.values(), *([self._best.checkpoint] if self._best else [])]
            return {checkpoint.folder for checkpoint in kept}

    def evaluated(self, evaluation: Evaluation) -> None:
        """Records an evaluation, and decides.

        Raises:
            BadJobError: A metric that the job watches is not among its metrics.
        """
        require_metrics(self._job, evaluation.metrics)
        self.callbacks.evaluated(evaluation.step, evaluation.metrics)
        with self._lock:
            self._evaluations.append(evaluation)
            self._unsaved.append(evaluation)
            checkpoint = self._pending.get(evaluation.step)
        with self._storage.writing(EvaluationLog.FILE_NAME):
            self._save()
        if checkpoint is not None:
            self._compare(Evaluated(checkpoint, evaluation.metrics))
        self._decide()

    def _recorded(self) -> list[Evaluation]:
        """The evaluations that are in the file."""
        with self._lock:
            return self._evaluations[: len(self._evaluations) - len(self._unsaved)]

    def _decide(self) -> None:
        """Decides on the evaluations that are in the file: the chief that replaces this one must decide the same."""
        with self._lock:
            if self._decision is not None or self._unsaved:
                return
            decision = self._decision = decide(self._job, self._evaluations)
        if decision is not None:
            logger.info("evaluate.stop: %s; training ends as soon as possible", decision.reason)

    def _expect(self, checkpoint: Checkpoint) -> None:
        """The next evaluation of a step is that of this checkpoint, not of one of an earlier generation."""
        self._due = [each for each in self._due if each.step != checkpoint.step]
        self._pending[checkpoint.step] = checkpoint

    def _save(self) -> None:
        """Appends what is not in the file yet; what the disk refuses waits for the next evaluation.

        Raises:
            OSError: The file cannot be written.
        """
        while self._unsaved:
            self._log.append(self._unsaved[0])
            del self._unsaved[0]

    def _compare(self, found: Evaluated) -> None:
        """Stores the metrics of a checkpoint, which may be the best one."""
        watched = self._job.checkpoint.best
        if watched is None:
            self.skipped(found.checkpoint.step)
            return
        self.store_best()
        is_stored = self._store(found)
        with self._lock:
            # A checkpoint that is evaluated again, at the end of a run that is done already, replaces itself.
            others = [each for each in [self._best] if each and each.checkpoint.folder != found.checkpoint.folder]
            self._best = evaluated.best([found, *others], watched)
            self._pending.pop(found.checkpoint.step, None)
            is_better = self._best is found
            self._is_best_stored = is_stored if is_better else self._is_best_stored
        if is_better:
            value, step = found.metrics[watched.metric], found.checkpoint.step
            extra = {"event": "best", "step": step, "metric": watched.metric, "value": value}
            logger.info("step %d is the best so far: %s %.6g", step, watched.metric, value, extra=extra)

    def store_best(self) -> None:
        """Stores the metrics of the best checkpoint if that was refused: only by them it is known as the best one."""
        with self._lock:
            best = None if self._is_best_stored else self._best
        if best is not None and self._store(best):
            with self._lock:
                self._is_best_stored = self._is_best_stored or self._best is best

    def _store(self, found: Evaluated) -> bool:
        """Stores the metrics of a checkpoint in its folder; False: they cannot be written."""
        with self._storage.writing("the evaluation of a checkpoint"):
            evaluated.write(found.checkpoint, found.metrics)
            return True
        return False
