"""Early stopping: a decision that depends on nothing but the job and the evaluations, so that it survives a chief."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from psfleet.job.job import Job
from psfleet.job.monitored import Stop
from psfleet.job.watched_metrics import evaluations_decide
from psfleet.report.schema import Evaluation, EvaluationLog
from worker_service.chief.counted_evaluations import CountedEvaluations


@dataclass(frozen=True)
class StopDecision:
    """Training ends at a step, or as soon as possible after it.

    Attributes:
        step: Of the evaluation that decided.
        reason: One line.
    """

    step: int
    reason: str


def recorded(out: Path, job: Job) -> list[Evaluation]:
    """The evaluations of a run folder in the order in which they were made.

    Raises:
        BadJobError: They decide how training continues, and a line of the file is none; see `JsonLines`.
    """
    log = EvaluationLog(out / EvaluationLog.FILE_NAME)
    return log.read() if evaluations_decide(job) else log.readable()


def decide(job: Job, evaluations: Iterable[Evaluation]) -> StopDecision | None:
    """Whether `evaluate.stop` of a job ends training before its final step.

    A rollback takes back what the evaluations that it has undone have changed, but no decision: the chief that has made
    one keeps it, and one that replaces that chief decides the same.

    Args:
        job: The job as it is now: with another `evaluate.stop` the same evaluations are judged anew.
        evaluations: In the order in which they were made; see `CountedEvaluations`.
    """
    stop = job.evaluate.stop
    if stop is None:
        return None
    counted = CountedEvaluations(stop.metric, job.train.steps)
    # After each that counts: the last improvement, and the number of evaluations since then.
    states: list[tuple[Evaluation | None, int]] = []
    for each in evaluations:
        if not counted.add(each):
            continue
        del states[len(counted) - 1 :]
        best, num_without = states[-1] if states else (None, 0)
        if stop.is_improvement(each.metrics[stop.metric], best.metrics[stop.metric] if best else None):
            best, num_without = each, 0
        else:
            num_without += 1
        states.append((best, num_without))
        if num_without >= stop.patience:
            return StopDecision(each.step, _reason(stop, best, each, num_without))
    return None


def final_step(job: Job, evaluations: Iterable[Evaluation]) -> int:
    """The step from which on a checkpoint is the last one of the run."""
    decision = decide(job, evaluations)
    return job.train.steps if decision is None else decision.step


def _reason(stop: Stop, best: Evaluation | None, last: Evaluation, num_without: int) -> str:
    least = f" by at least {stop.min_delta:g}" if stop.min_delta else ""
    evaluations = "evaluation" if num_without == 1 else f"{num_without} evaluations"
    before = f"{best.metrics[stop.metric]:.6g} at step {best.step}" if best else "no finite value"
    return (
        f"{stop.metric} has not improved{least} in the last {evaluations}: {before}, then "
        f"{last.metrics[stop.metric]:.6g} at step {last.step}"
    )
