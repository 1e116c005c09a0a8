"""The evaluations by which training is ended or the learning rate reduced: those that no rollback has undone."""

from __future__ import annotations

from psfleet.report.schema import Evaluation


class CountedEvaluations:
    """The evaluations that count, each step once.

    A generation begins at the step of its checkpoint. Evaluations of earlier generations at a higher step are of
    weights that were undone, and of other steps than those after the rollback if a step's number is not the same at
    both times, as in async mode.

    Args of the constructor:
        metric: Evaluations without it do not count: they were made by an earlier run, of a program with other metrics.
        final_step: Those from this step on do not count.
    """

    def __init__(self, metric: str, final_step: int) -> None:
        self._metric = metric
        self._final_step = final_step
        self._kept: dict[int, Evaluation] = {}
        self._newest: Evaluation | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> list[Evaluation]:
        """Those that count, in the order in which they were made."""
        return list(self._kept.values())

    def add(self, evaluation: Evaluation) -> bool:
        """Adds the next evaluation, and removes from the end those that its generation has undone.

        Returns:
            Whether it counts. Of a step that is evaluated again, as at the end of an earlier run, the first one does.
        """
        newest = self._newest
        if newest is not None and newest.undoes(evaluation):
            # A chief that was frozen meanwhile has made it.
            return False
        if newest is None or evaluation.generation >= newest.generation:
            self._newest = evaluation
        while self._kept and evaluation.undoes(next(reversed(self._kept.values()))):
            self._kept.popitem()
        if self._metric not in evaluation.metrics or evaluation.step >= self._final_step:
            return False
        return self._kept.setdefault(evaluation.step, evaluation) is evaluation
