"""The step at which a run is held: workers leave there as at the final step, and train on once it is raised."""

from __future__ import annotations

from ps_service.shard_graph import ShardGraph
from ps_service.updates.final_step import last_step
from psfleet.control import MIN_STEPS_AHEAD

Order = tuple[int, int]


class Hold:
    """The hold of one shard; its methods are called while the shard's lock is held.

    Args of the constructor:
        at: The step at which training is held; None: it is not.

    Attributes:
        at: That step.
    """

    def __init__(self, graph: ShardGraph, at: int | None) -> None:
        self._graph = graph
        self._newest: Order = (-1, 0)
        self.at = at

    def schedule(self, at: int | None, order: Order, present: int, final_step: int) -> bool:
        """Replaces the step.

        Args:
            at: None: training continues.
            order: Of the request: the chief's incarnation, and the number of its request. One whose deadline has passed
                can arrive after a newer one.
            present: The shard's step.
            final_step: At which the run ends.

        Returns:
            False if nothing changes: the update after the step can have started, or a newer request came before.
        """
        before, after = last_step(final_step, self.at), last_step(final_step, at)
        if order <= self._newest or (after < before and after < present + MIN_STEPS_AHEAD):
            return False
        if not self._move(before, after):
            return False
        self.at, self._newest = at, order
        return True

    def move_end(self, before: int, after: int) -> bool:
        """Has workers end training at another step; False if that failed.

        A later one than before is that of a stop which other ps have refused, or accepted for another step. Workers may
        have left here meanwhile.
        """
        return self._move(last_step(before, self.at), last_step(after, self.at))

    def _move(self, before: int, after: int) -> bool:
        if after < before:
            return self._graph.set_final_step(after)
        return after == before or self._graph.raise_final_step(after)
