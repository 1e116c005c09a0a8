"""Builds the shard that the chief asks for, in place of that of an earlier generation."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from ps_service.exchanges import Exchanges, admit_none
from ps_service.restore import Restored
from ps_service.run_state import Run
from ps_service.shard import Shard
from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.location import parse
from psfleet.control import control_pb2 as pb
from psfleet.errors import PsfleetError
from psfleet.job.job import job_from_json
from psfleet.layout import Layout
from psfleet.tf.traced_update import TracedUpdate


class ShardBuilder:
    """Both methods are called while `Run.building` is held.

    Args of the constructor:
        server: Address of this process's TensorFlow server, `grpc://host:port`.
        finish: Ends a run with an outcome, if its shard fails.
        exchanges: Of this ps; None: it has no connections.
    """

    def __init__(
        self, server: str, finish: Callable[[Run, pb.Outcome], None], exchanges: Exchanges | None = None
    ) -> None:
        self._server = server
        self._finish = finish
        self._admit = admit_none if exchanges is None else partial(exchanges.admit, server)

    def make_way(self, run: Run, request: pb.ConfigureRequest) -> ShardPlan | None:
        """Closes the shard of an earlier generation.

        Returns:
            What is to be built; None: it is there.

        Raises:
            ReplacedError: There is a newer chief than the caller.
            LostPeerError: The run is over, or the request is of an earlier generation than the newest.
            BadJobError: The job is not valid.
            PsfleetError: What is to be built cannot replace the present shard.
        """
        run.admit_chief(request.caller.member)
        plan = _requested(run.name, request)
        with run.lock:
            run.view.check_generation(plan.generation)
        old = run.shard
        if old is not None:
            if old.plan == plan:
                return None
            if old.plan.generation >= plan.generation:
                raise _conflict(old.plan, plan)
            run.take_shard()
            old.close()
        return plan

    def build(self, run: Run, plan: ShardPlan, restored: Restored) -> None:
        """Builds a shard, and stores it."""
        shard = Shard(
            self._server,
            plan,
            restored,
            lambda message, exit_code: self._finish(run, pb.Outcome(exit_code=exit_code, message=message)),
            run.is_followed,
            self._admit,
        )
        run.install(shard)
        extra = {"step": shard.step, "generation": plan.generation}
        run.logger.info("shard %d starts at step %d", plan.shard, shard.step, extra=extra)


def _requested(run: str, request: pb.ConfigureRequest) -> ShardPlan:
    return ShardPlan(
        run=run,
        generation=request.generation,
        shard=request.shard,
        job=job_from_json(request.job_json),
        layout=Layout.from_dict(json.loads(request.layout_json)),
        checkpoints_root=parse(request.checkpoints_root) if request.checkpoints_root else None,
        update=TracedUpdate.from_json(request.update_json) if request.update_json else None,
        reductions=tuple(request.reductions),
        hold_at=request.hold_at if request.HasField("hold_at") else None,
        job_digest=request.job_digest,
    )


def _conflict(mine: ShardPlan, requested: ShardPlan) -> PsfleetError:
    """Why a plan cannot replace that of this ps's shard."""
    for name in ("shard", "layout", "job", "checkpoints_root", "update"):
        if getattr(mine, name) != getattr(requested, name):
            return PsfleetError(f"{name} differs from that of generation {mine.generation} of run {mine.run}")
    return PsfleetError(f"generation {requested.generation} requested, expected one above {mine.generation}")
