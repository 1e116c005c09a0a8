"""The evaluations that a chief which died has not finished, and the next one does not make."""

from __future__ import annotations

from collections.abc import Iterable

from psfleet.job.job import Job
from psfleet.report.schema import Evaluation


def lost_steps(
    job: Job, evaluations: Iterable[Evaluation], start: int, generation: int, first_step: int, step: int
) -> list[int]:
    """The steps that an earlier chief of an attempt was to evaluate, with its own weights, and has not.

    Args:
        evaluations: In the run folder.
        start: The step at which the attempt began.
        generation: That the next chief trains.
        first_step: At which it began: later evaluations of generations before it are undone.
        step: The global step at which the next chief begins to train: it evaluates those after it.
    """
    every = job.evaluate.every_steps
    if every is None or job.evaluates_checkpoints:
        return []
    made = [each.step for each in evaluations if each.generation == generation or each.step <= first_step]
    last = max([start, *made])
    # That of the final step is made at the end of the run.
    return list(range((last // every + 1) * every, min(step + 1, job.train.steps), every))
