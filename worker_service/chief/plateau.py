"""Decisions of a plateau schedule: they depend on the recorded evaluations and reductions, and so survive a chief."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psfleet.job.job import Job
from psfleet.job.learning_rate import reduced_rate
from psfleet.job.optimizer import Plateau
from psfleet.report.reductions import Reduction
from psfleet.report.schema import Evaluation
from worker_service.chief.counted_evaluations import CountedEvaluations


def next_reduction(job: Job, evaluations: Iterable[Evaluation], made: Sequence[Reduction]) -> Evaluation | None:
    """The evaluation that calls for one more reduction of the learning rate; None: none does.

    The rule is that of keras.callbacks.ReduceLROnPlateau with evaluations in place of epochs, except that a reduction
    applies from a later step on. Evaluations up to that step are of weights that it has not changed yet: an improvement
    among them is one, but they do not count as without an improvement, nor for the cooldown. A value that is not finite
    is no improvement.

    After a rollback the reductions apply at the same steps again. None is due before the last of them is reached, also
    if the evaluation that called for it was undone.

    Args:
        job: The job as it is now. With another schedule the reductions stay, and what follows the last one is judged
            anew.
        evaluations: In the order in which they were made; see `CountedEvaluations`.
        made: In the order in which they were decided.
    """
    schedule = job.schedule
    if not isinstance(schedule, Plateau):
        return None
    if reduced_rate(job.rule, len(made)) <= schedule.min_learning_rate:
        return None
    counted = CountedEvaluations(schedule.metric, job.train.steps)
    for each in evaluations:
        counted.add(each)
    left = sorted(made, key=lambda each: each.evaluation)
    best: float | None = None
    num_without, cooldown, applies_from = 0, 0, -1
    for each in counted.all():
        for reduction in _taken(left, each.step - 1):
            num_without, cooldown, applies_from = 0, schedule.cooldown, reduction.step
        value = each.metrics[schedule.metric]
        is_improvement = schedule.gain(value, best) > schedule.min_delta
        best = value if is_improvement else best
        if each.step > applies_from:
            is_counted = cooldown <= 1
            cooldown = max(0, cooldown - 1)
            num_without = num_without + 1 if is_counted and not is_improvement else 0
        for reduction in _taken(left, each.step):
            num_without, cooldown, applies_from = 0, schedule.cooldown, reduction.step
        if not left and num_without >= schedule.patience:
            return each
    return None


def _taken(left: list[Reduction], step: int) -> list[Reduction]:
    """Removes the reductions whose evaluations were made at a step or before it, and returns them.

    Args:
        left: In the order of their evaluations.
    """
    taken = [each for each in left if each.evaluation <= step]
    del left[: len(taken)]
    return taken
