"""Decisions of a plateau schedule: they depend on the recorded evaluations and reductions, and so survive a chief."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psfleet.job.job import Job
from psfleet.job.learning_rate import reduced_rate
from psfleet.job.optimizer import Plateau
from psfleet.report.reductions import Reduction
from psfleet.report.schema import Evaluation


def next_reduction(job: Job, evaluations: Iterable[Evaluation], made: Sequence[Reduction]) -> Evaluation | None:
    """The evaluation that calls for one more reduction of the learning rate; None: none does.

    The rule is that of keras.callbacks.ReduceLROnPlateau with evaluations in place of epochs, except that a reduction
    applies from a later step on. Evaluations up to that step are of weights that it has not changed yet: an improvement
    among them is one, but they do not count as without an improvement, nor for the cooldown. A value that is not finite
    is no improvement.

    Args:
        job: The job as it is now. With another schedule the reductions stay, and what follows the last one is judged
            anew.
        evaluations: In the order in which they were made. Of a step that was evaluated again, the first one counts.
        made: In the order in which they were decided.
    """
    schedule = job.schedule
    if not isinstance(schedule, Plateau):
        return None
    if reduced_rate(job.rule, len(made)) <= schedule.min_learning_rate:
        return None
    counted = _counted(schedule, evaluations, job.train.steps)
    reduced_at = {each.evaluation: each.step for each in made}
    last_made = max((number for number, each in enumerate(counted) if each.step in reduced_at), default=-1)
    best: float | None = None
    num_without, cooldown, applies_from = 0, 0, -1
    for number, each in enumerate(counted):
        value = each.metrics[schedule.metric]
        is_improvement = schedule.gain(value, best) > schedule.min_delta
        best = value if is_improvement else best
        if each.step > applies_from:
            is_counted = cooldown <= 1
            cooldown = max(0, cooldown - 1)
            num_without = num_without + 1 if is_counted and not is_improvement else 0
        if each.step in reduced_at:
            num_without, cooldown, applies_from = 0, schedule.cooldown, reduced_at[each.step]
        elif number > last_made and num_without >= schedule.patience:
            return each
    return None


def _counted(schedule: Plateau, evaluations: Iterable[Evaluation], final_step: int) -> list[Evaluation]:
    """The first evaluation of each step before the final one that has the schedule's metric."""
    first: dict[int, Evaluation] = {}
    for each in evaluations:
        if schedule.metric in each.metrics and each.step < final_step:
            first.setdefault(each.step, each)
    return list(first.values())
