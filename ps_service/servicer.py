"""The control plane of a ps: a gRPC servicer over the runs that it serves."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import NoReturn

import grpc
import tensorflow as tf

import psfleet
from ps_service.run_state import Run
from ps_service.shard import Shard
from ps_service.shard_graph import ShardPlan
from psfleet import errors
from psfleet.checkpoint.manifest import read_manifest
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job.job import job_from_json
from psfleet.layout import Layout
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
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()
        self.finished = threading.Event()
        if only_run:
            self._runs[only_run] = Run(only_run, cause)

    def runs(self) -> list[Run]:
        """All runs on this ps."""
        with self._lock:
            return list(self._runs.values())

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        return self._run(request.caller, context).state()

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinReply:
        """See control.proto."""
        run = self._run(request.caller, context)
        lease = run.lease(request)
        if lease is None:
            message = (
                f"worker index {request.index} requested, all {request.worker_limit} of fleet.max_workers are taken"
            )
            _refuse(context, message)
        index, joins = lease
        return pb.JoinReply(index=index, joins=joins)

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        if not request.leaving:
            self._connect_worker(request, context)
        run.record_heartbeat(request)
        return run.state()

    def Configure(self, request: pb.ConfigureRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        with run.building:
            if not self._is_current(run):
                context.abort(grpc.StatusCode.ABORTED, f"run {run.name} was reset while its shard was configured")
            try:
                self._configure(run, request)
            except PsfleetError as error:
                _refuse(context, str(error))
        return run.state()

    def ScheduleCheckpoint(
        self, request: pb.ScheduleCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.ScheduleCheckpointReply:
        """See control.proto."""
        shard = self._run(request.caller, context).shard
        if shard is None or shard.plan.generation != request.generation:
            return pb.ScheduleCheckpointReply(accepted=False, step=shard.step if shard else 0)
        return pb.ScheduleCheckpointReply(
            accepted=shard.schedule_checkpoint(request.step, request.stop), step=shard.step
        )

    def Finish(self, request: pb.FinishRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        self._finish(run, request.outcome)
        return run.state()

    def Reset(self, request: pb.ResetRequest, context: grpc.ServicerContext) -> pb.ResetReply:
        """See control.proto."""
        run = self._run(request.caller, context)
        with run.building:
            if self._is_current(run):
                with self._lock:
                    del self._runs[run.name]
                    if self._only_run:
                        self._runs[self._only_run] = Run(self._only_run, self._cause)
            with run.lock:
                shard, run.shard = run.shard, None
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

    def _connect_worker(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> None:
        """Before the reply: a worker may open a session as soon as it has one."""
        try:
            self._plane.meet(request.index, request.address)
        except LostPeerError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except PsfleetError as error:
            _refuse(context, str(error))

    def _is_current(self, run: Run) -> bool:
        """Whether a run has not been reset or dropped since the call started."""
        with self._lock:
            return self._runs.get(run.name) is run

    def _finish(self, run: Run, outcome: pb.Outcome) -> None:
        if run.finish(outcome):
            run.logger.info("the run is over: %s", outcome.message, extra={"exit_code": outcome.exit_code})
        if self._only_run:
            self.finished.set()

    def _run(self, caller: pb.Caller, context: grpc.ServicerContext) -> Run:
        """The caller's run; ends the call if this ps cannot serve it."""
        if caller.version != psfleet.__version__:
            message = f"caller has psfleet {caller.version or 'of no version'}, expected {psfleet.__version__}"
            _refuse(context, message)
        if not caller.run or (self._only_run and caller.run != self._only_run):
            message = f"caller's run is {caller.run!r}, expected {self._only_run or 'a name'!r}"
            _refuse(context, message)
        with self._lock:
            return self._runs.setdefault(caller.run, Run(caller.run, self._cause))

    def _configure(self, run: Run, request: pb.ConfigureRequest) -> None:
        plan = ShardPlan(
            run=run.name,
            generation=request.generation,
            shard=request.shard,
            job=job_from_json(request.job_json),
            layout=Layout.from_dict(json.loads(request.layout_json)),
            checkpoints_root=Path(request.checkpoints_root),
        )
        old = run.shard
        if old is not None:
            if old.plan == plan:
                return
            if old.plan.generation >= plan.generation:
                raise _conflict(old.plan, plan)
            with run.lock:
                run.shard = None
            old.close()
        shard = Shard(
            self._server,
            plan,
            read_manifest(Path(request.checkpoint_folder)),
            lambda message: self._finish(run, pb.Outcome(exit_code=errors.BUG, message=message)),
        )
        with run.lock:
            run.shard = shard
        run.logger.info(
            "shard %d starts at step %d",
            plan.shard,
            shard.step,
            extra={"step": shard.step, "generation": plan.generation},
        )


def _refuse(context: grpc.ServicerContext, message: str) -> NoReturn:
    """Aborts a call that would fail again."""
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    raise AssertionError("abort() raises")


def _conflict(mine: ShardPlan, requested: ShardPlan) -> PsfleetError:
    """Why a plan cannot replace that of this ps's shard."""
    for name in ("shard", "layout", "job", "checkpoints_root"):
        if getattr(mine, name) != getattr(requested, name):
            return PsfleetError(f"{name} differs from that of generation {mine.generation} of run {mine.run}")
    return PsfleetError(f"generation {requested.generation} requested, expected one above {mine.generation}")
