"""The control plane of a ps: a gRPC servicer over the runs that it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import tensorflow as tf

import psfleet
from ps_service.exchanges import Exchanges
from ps_service.only_stream import admitted
from ps_service.refusals import refusals, refuse
from ps_service.restore import read_checkpoint, receive
from ps_service.run_state import Run
from ps_service.scheduling import schedule_checkpoint, schedule_hold, schedule_reductions
from ps_service.shard_builder import ShardBuilder
from psfleet.checkpoint.location import parse
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.prompt_stream import prompt
from psfleet.errors import LostPeerError
from psfleet.tls.data_plane import DataPlane


class ControlServicer(control_pb2_grpc.ShardControlServicer):
    """The runs on this ps.

    Args of the constructor:
        server: Address of this process's TensorFlow server, `grpc://host:port`.
        only_run: The one run that this ps serves; empty: any.
        cause: Why this ps was restarted; empty if it was not.
        plane: Makes workers reachable for TensorFlow.
        exchanges: On connections of workers; None: there are none.
    """

    def __init__(
        self, server: str, only_run: str, cause: str, plane: DataPlane, exchanges: Exchanges | None = None
    ) -> None:
        self._builder = ShardBuilder(server, self._finish, exchanges)
        self._exchange_port = 0 if exchanges is None else exchanges.port
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
                self._meet(run, request.caller.member.index, request.address)
        reply = run.heartbeat_reply(request.caller.member.index)
        reply.exchange_port = self._exchange_port
        return reply

    def _meet(self, run: Run, worker: int, address: str) -> None:
        self._plane.meet(run.name, worker, address)
        with self._lock:
            is_known = run.name in self._runs
        if not is_known:
            # It was dropped meanwhile, and nothing would release its workers.
            self._plane.release(run.name)

    def Configure(self, request: pb.ConfigureRequest, context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        run = self._run(request.caller, context)
        with refusals(context), self._building(run):
            plan = self._builder.make_way(run, request)
            if plan is not None:
                self._builder.build(run, plan, read_checkpoint(parse(request.checkpoint_folder), plan))
        return run.state(with_counters=True)

    def Restore(self, request_iterator: Iterator[pb.RestoreRequest], context: grpc.ServicerContext) -> pb.ShardState:
        """See control.proto."""
        first = next(prompt(request_iterator, context.cancel), pb.RestoreRequest())
        request, caller = first.configure, first.configure.caller
        run = self._run(caller, context)
        with refusals(context):
            with self._building(run):
                plan = self._builder.make_way(run, request)
            if plan is not None:
                # Not under the lock: a chief that is frozen now must not hold up the one that replaces it.
                with run.restoring.only(context.cancel):
                    restored = receive(
                        first.origin, plan, admitted(request_iterator, lambda: run.admit_chief(caller.member))
                    )
                with self._building(run):
                    if self._builder.make_way(run, request) is not None:
                        self._builder.build(run, plan, restored)
            run.followed_by(caller.member)
        return run.state(with_counters=True)

    def FetchPart(self, request: pb.FetchPartRequest, context: grpc.ServicerContext) -> Iterator[pb.PartChunk]:
        """See control.proto."""
        run = self._run_of_chief(request.caller, context)
        run.followed_by(request.caller.member)
        with refusals(context):
            shard = run.shard
            if shard is None or shard.plan.generation != request.generation:
                raise LostPeerError(f"generation {request.generation} has ended, or has not begun")
            with shard.writer.held.reading(request.step, context.cancel) as chunks:
                for chunk in admitted(chunks, lambda: run.admit_chief(request.caller.member)):
                    yield pb.PartChunk(data=chunk)

    def ReleasePart(self, request: pb.ReleasePartRequest, context: grpc.ServicerContext) -> pb.ReleasePartReply:
        """See control.proto."""
        run = self._run_of_chief(request.caller, context)
        run.followed_by(request.caller.member)
        shard = run.shard
        if shard is not None and shard.plan.generation == request.generation:
            shard.writer.held.release(request.step, request.error)
        return pb.ReleasePartReply()

    def ScheduleCheckpoint(
        self, request: pb.ScheduleCheckpointRequest, context: grpc.ServicerContext
    ) -> pb.ScheduleCheckpointReply:
        """See control.proto."""
        run = self._run_of_chief(request.caller, context)
        reply = schedule_checkpoint(run.shard, request)
        if reply.accepted and request.stop:
            run.set_stop_signal(request.signal)
        return reply

    def ScheduleReductions(
        self, request: pb.ScheduleReductionsRequest, context: grpc.ServicerContext
    ) -> pb.ScheduleReductionsReply:
        """See control.proto."""
        return schedule_reductions(self._run_of_chief(request.caller, context).shard, request)

    def ScheduleHold(self, request: pb.ScheduleHoldRequest, context: grpc.ServicerContext) -> pb.ScheduleHoldReply:
        """See control.proto."""
        return schedule_hold(self._run_of_chief(request.caller, context).shard, request)

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
                self._plane.release(run.name)
            shard = run.take_shard()
            if shard is not None:
                shard.close()
        return pb.ResetReply(found=shard is not None)

    def drop_finished(self) -> None:
        """On a shared ps, drops each run that is over or idle; see `Run.is_over` and `Run.is_idle`."""
        with self._lock:
            over = [run for run in self._runs.values() if not self._only_run and (run.is_over() or run.is_idle())]
            for run in over:
                del self._runs[run.name]
        for run in over:
            self._plane.release(run.name)
            # A Reset that began before may take it, too: one of both closes it.
            shard = run.take_shard()
            if shard is None:
                continue
            if run.outcome is None:
                run.logger.warning("the shard is dropped: no worker of the run has been heard for an hour")
            try:
                shard.close()
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

    @contextmanager
    def _building(self, run: Run) -> Iterator[None]:
        """Holds the run's lock for building.

        Raises:
            LostPeerError: The run has been reset since the call started.
        """
        with run.building:
            if not self._is_current(run):
                raise LostPeerError(f"run {run.name} was reset while its shard was configured")
            yield
