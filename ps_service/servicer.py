"""The control plane of a ps: a gRPC servicer over the runs that it serves."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import grpc
import tensorflow as tf

import psfleet
from ps_service.refusals import refusals, refuse
from ps_service.restore import read_checkpoint
from ps_service.run_state import Run
from ps_service.shard import Shard
from ps_service.shard_plan import ShardPlan
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job.job import job_from_json
from psfleet.layout import Layout
from psfleet.tf.traced_update import TracedUpdate
from psfleet.tls.data_plane import DataPlane


class ControlServicer(control_pb2_grpc.ShardControlServicer):
    """The runs on this ps.

    Args of the constructor:
        server: Address of this process's TensorFlow server, `grpc://host:port`.
        only_run: The one run that this ps serves; empty: any.
        cause: Why this ps was restarted; empty if it was not.
        plane: Makes workers reachable for TensorFlow.
    """

    def __init__(self, server: str, only_run: str, cause: str, plane: DataPlane) -> None:
        self._server = server
        self._plane = plane
        self._cause = cause
        self._only_run = only_run
        self._started = time.monotonic()
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self.finished = threading.Event()
        if only_run:
            self._runs[only_run] = self._new_run(only_run)

    def runs(self) -> list[Run]:
        """All runs on this ps."""
        with self._lock:
            return list(self._runs.values())

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        return run.state(with_counters=True, caller=request.caller.member.index)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply:
        """See control.proto."""
        run = self._run(request.caller, context)
        with refusals(context):
            return run.join(request)

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        with refusals(context):
            run.record_heartbeat(request)
            if not request.leaving and run.outcome is None:
                # Before the reply: a worker may open a session as soon as it has one.
                self._plane.meet(request.caller.member.index, request.address)
        return run.heartbeat_reply(request.caller.member.index)

    def Configure(self, request: pb.ConfigureRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        with refusals(context), run.building:
            if not self._is_current(run):
                raise LostPeerError(f"run {run.name} was reset while its shard was configured")
            run.admit_chief(request.caller.member)
            self._configure(run, request)
        return run.state(with_counters=True)

    def ScheduleCheckpoint(
        self, request: pb.ScheduleCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.ScheduleCheckpointReply:
        """See control.proto."""
        run = self._run_of_chief(request.caller, context)
        shard = run.shard
        accepted = (
            shard is not None
            and shard.plan.generation == request.generation
            and shard.schedule_checkpoint(request.step, request.stop)
        )
        if accepted and request.stop:
            run.set_stop_signal(request.signal)
        return pb.ScheduleCheckpointReply(accepted=accepted, step=shard.step if shard else 0)

    def ScheduleReductions(
        self, request: pb.ScheduleReductionsRequest, context: grpc.ServicerContext
    ) -> pb.ScheduleReductionsReply:
        """See control.proto."""
        run = self._run_of_chief(request.caller, context)
        shard = run.shard
        pause_at = request.pause_at if request.HasField("pause_at") else None
        order = request.caller.member.incarnation, request.number
        accepted = (
            shard is not None
            and shard.plan.generation == request.generation
            and shard.schedule_reductions(request.reductions, pause_at, order)
        )
        return pb.ScheduleReductionsReply(accepted=accepted, step=shard.step if shard else 0)

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        with refusals(context):
            self._finish(run, request.outcome, request.caller.member)
        return run.state()

    def Reset(self, request: pb.ResetRequest, context: grpc.ServicerContext) -> pb.ResetReply:
        """See control.proto."""
        run = self._run(request.caller, context)
        with run.building:
            if self._is_current(run):
                with self._lock:
                    del self._runs[run.name]
                    if self._only_run:
                        self._runs[self._only_run] = self._new_run(self._only_run)
            shard = run.take_shard()
            if shard is not None:
                shard.close()
        return pb.ResetReply(found=shard is not None)

    def drop_finished(self) -> None:
        """On a shared ps, drops each run that is over or idle; see `Run.is_over` and `Run.is_idle`."""
        if self._only_run:
            return
        with self._lock:
            over = [run for run in self._runs.values() if run.is_over() or run.is_idle()]
            for run in over:
                del self._runs[run.name]
        for run in over:
            if run.shard is None:
                continue
            try:
                run.shard.close()
            except tf.errors.OpError as error:
                run.logger.error("cannot release all of the shard's resources: %s", error.message)

    def _is_current(self, run: Run) -> bool:
        """Whether a run has not been reset or dropped since the call started."""
        with self._lock:
            return self._runs.get(run.name) is run

    def _finish(self, run: Run, outcome: pb.Outcome, caller: pb.Member | None = None) -> None:
        if run.finish(outcome, caller):
            run.logger.info("the run is over: %s", outcome.message, extra={"exit_code": outcome.exit_code})
        if self._only_run:
            self.finished.set()

    def _run(self, caller: pb.Caller, context: grpc.ServicerContext) -> Run:
        """The caller's run; ends the call if this ps cannot serve it."""
        if caller.version != psfleet.__version__:
            message = f"caller has psfleet {caller.version or 'of no version'}, expected {psfleet.__version__}"
            refuse(context, message)
        if not caller.run or (self._only_run and caller.run != self._only_run):
            message = f"caller's run is {caller.run!r}, expected {self._only_run or 'a name'!r}"
            refuse(context, message)
        with self._lock:
            if caller.run not in self._runs:
                self._runs[caller.run] = self._new_run(caller.run)
            return self._runs[caller.run]

    def _run_of_chief(self, caller: pb.Caller, context: grpc.ServicerContext) -> Run:
        """The caller's run; ends the call if the caller is not the run's present chief."""
        run = self._run(caller, context)
        with refusals(context):
            run.admit_chief(caller.member)
        return run

    def _new_run(self, name: str) -> Run:
        return Run(name, self._cause, self._started)

    def _configure(self, run: Run, request: pb.ConfigureRequest) -> None:
        plan = ShardPlan(
            run=run.name,
            generation=request.generation,
            shard=request.shard,
            job=job_from_json(request.job_json),
            layout=Layout.from_dict(json.loads(request.layout_json)),
            checkpoints_root=Path(request.checkpoints_root),
            update=TracedUpdate.from_json(request.update_json) if request.update_json else None,
            reductions=tuple(request.reductions),
        )
        with run.lock:
            run.view.check_generation(plan.generation)
        old = run.shard
        if old is not None:
            if old.plan == plan:
                return
            if old.plan.generation >= plan.generation:
                raise _conflict(old.plan, plan)
            run.take_shard()
            old.close()
        checkpoint, content = read_checkpoint(Path(request.checkpoint_folder), plan)
        shard = Shard(
            self._server,
            plan,
            checkpoint,
            content,
            lambda message, exit_code: self._finish(run, pb.Outcome(exit_code=exit_code, message=message)),
        )
        run.install(shard)
        run.logger.info(
            "shard %d starts at step %d",
            plan.shard,
            shard.step,
            extra={"step": shard.step, "generation": plan.generation},
        )


def _conflict(mine: ShardPlan, requested: ShardPlan) -> PsfleetError:
    """Why a plan cannot replace that of this ps's shard."""
    for name in ("shard", "layout", "job", "checkpoints_root", "update"):
        if getattr(mine, name) != getattr(requested, name):
            return PsfleetError(f"{name} differs from that of generation {mine.generation} of run {mine.run}")
    return PsfleetError(f"generation {requested.generation} requested, expected one above {mine.generation}")
