"""The step at which a run is held: workers leave there as at the final step, and train on once it is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psfleet.control import MIN_STEPS_AHEAD
from psfleet.control import control_pb2 as pb

if TYPE_CHECKING:
    from ps_service.shard import Shard
    from ps_service.shard_graph import ShardGraph

Order = tuple[int, int]


def lowest(final_step: int, hold_at: int | None) -> int:
    """The step at which workers leave: the final one, or that at which the run is held before."""
    return final_step if hold_at is None else min(final_step, hold_at)


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
        before, after = lowest(final_step, self.at), lowest(final_step, at)
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
        return self._move(lowest(before, self.at), lowest(after, self.at))

    def _move(self, before: int, after: int) -> bool:
        if after < before:
            return self._graph.set_final_step(after)
        return after == before or self._graph.raise_final_step(after)


def hold(shard: Shard | None, request: pb.ScheduleHoldRequest) -> pb.ScheduleHoldReply:
    """Passes a request on to the shard of its generation; refused without one."""
    if shard is None:
        return pb.ScheduleHoldReply(accepted=False)
    step = request.step if request.HasField("step") else None
    order = request.caller.member.incarnation, request.number
    accepted = shard.plan.generation == request.generation and shard.schedule_hold(step, order)
    return pb.ScheduleHoldReply(accepted=accepted, step=shard.step)
