"""Passes what the chief schedules to the shard of its generation, and says at which step that shard is."""

from __future__ import annotations

from ps_service.shard import Shard
from psfleet.control import control_pb2 as pb


def schedule_checkpoint(shard: Shard | None, request: pb.ScheduleCheckpointRequest) -> pb.ScheduleCheckpointReply:
    """Schedules a checkpoint, or the end of training; refused without a shard of the generation."""
    found = _of_generation(shard, request.generation)
    accepted = found is not None and found.schedule_checkpoint(request.step, request.stop)
    return pb.ScheduleCheckpointReply(accepted=accepted, step=shard.step if shard else 0)


def schedule_reductions(shard: Shard | None, request: pb.ScheduleReductionsRequest) -> pb.ScheduleReductionsReply:
    """Schedules reductions of the learning rate; refused without a shard of the generation."""
    pause_at = request.pause_at if request.HasField("pause_at") else None
    order = request.caller.member.incarnation, request.number
    found = _of_generation(shard, request.generation)
    accepted = found is not None and found.schedule_reductions(request.reductions, pause_at, order)
    return pb.ScheduleReductionsReply(accepted=accepted, step=shard.step if shard else 0)


def schedule_hold(shard: Shard | None, request: pb.ScheduleHoldRequest) -> pb.ScheduleHoldReply:
    """Holds training at a step, or continues it; refused without a shard of the generation."""
    step = request.step if request.HasField("step") else None
    order = request.caller.member.incarnation, request.number
    found = _of_generation(shard, request.generation)
    accepted = found is not None and found.schedule_hold(step, order)
    return pb.ScheduleHoldReply(accepted=accepted, step=shard.step if shard else 0)


def _of_generation(shard: Shard | None, generation: int) -> Shard | None:
    return shard if shard is not None and shard.plan.generation == generation else None
