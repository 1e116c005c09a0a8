"""What a ps answers to calls of its control plane; no server and no shard are needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import psfleet
from ps_service.relearning import RELEARN_SECS
from ps_service.servicer import ControlServicer
from ps_service.shard_state import describe
from psfleet.control import RETRY_SECS
from psfleet.control import control_pb2 as pb
from psfleet.job.fleet import Fleet


class AbortedError(Exception):
    """A call was ended with a status."""


class Context:
    """The server's side of one call.

    Attributes:
        metadata: What the caller gets beside the status.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}

    def set_trailing_metadata(self, pairs: tuple[tuple[str, str], ...]) -> None:
        """See grpc.ServicerContext."""
        self.metadata = dict(pairs)

    def cancel(self) -> None:
        """See grpc.ServicerContext."""
        raise AssertionError("the call was cancelled")

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """See grpc.ServicerContext."""
        raise AbortedError(code, details)


CONTEXT: Any = Context()


class Plane:
    """Records which workers were made reachable."""

    def __init__(self) -> None:
        self.met: list[tuple[str, int, str]] = []
        self.released: list[str] = []

    def meet(self, run: str, worker: int, address: str) -> None:
        """See DataPlane."""
        self.met.append((run, worker, address))

    def release(self, run: str) -> None:
        """See DataPlane."""
        self.released.append(run)


class CountingShard:
    """Stands for a shard in training; counts what takes time."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        layout = SimpleNamespace(digest=self.digest, tables=(("words", "digest of words"),))
        job = SimpleNamespace(quorum=2, fleet=Fleet(workers=2))
        self.plan = SimpleNamespace(
            generation=1, job=job, layout=layout, optimizer="sgd", job_digest="digest of the job"
        )
        self.writer = SimpleNamespace(parts=list)
        self.step, self.final_step, self.first_step, self.model_bytes = 4, 9, 0, 0
        self.last_step, self.hold = 9, SimpleNamespace(at=None)
        self.slot_names: list[str] = []
        self.is_complete = False
        self.last_update = time.monotonic()

    def digest(self) -> str:
        """See Layout."""
        self.calls.append("digest")
        return "digest of the layout"

    def counters(self) -> Any:
        """See Shard."""
        self.calls.append("counters")
        raise RuntimeError("the session is closed")


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def servicer(plane: Any) -> ControlServicer:
    return ControlServicer("grpc://localhost:1", "run", "", plane)


def joined(servicer: ControlServicer, process: str, index: int) -> pb.Caller:
    """A worker joins; the caller of its further requests."""
    caller = pb.Caller(run="run", version=psfleet.__version__)
    reply = servicer.Join(pb.JoinRequest(caller=caller, index=index, worker_limit=3, process=process), CONTEXT)
    caller.member.CopyFrom(pb.Member(index=reply.index, incarnation=reply.incarnation, process=process))
    return caller


def beat(servicer: ControlServicer, caller: pb.Caller, number: int = 1) -> pb.ShardState:
    return servicer.Heartbeat(pb.HeartbeatRequest(caller=caller, beat=number, address="worker:2222"), CONTEXT)


@pytest.mark.parametrize(
    "call",
    [
        beat,
        lambda servicer, caller: servicer.Configure(pb.ConfigureRequest(caller=caller), CONTEXT),
        lambda servicer, caller: servicer.Restore(
            iter([pb.RestoreRequest(configure=pb.ConfigureRequest(caller=caller))]), CONTEXT
        ),
        lambda servicer, caller: next(servicer.FetchPart(pb.FetchPartRequest(caller=caller), CONTEXT)),
        lambda servicer, caller: servicer.ReleasePart(pb.ReleasePartRequest(caller=caller), CONTEXT),
        lambda servicer, caller: servicer.ScheduleCheckpoint(pb.ScheduleCheckpointRequest(caller=caller), CONTEXT),
        lambda servicer, caller: servicer.ScheduleReductions(pb.ScheduleReductionsRequest(caller=caller), CONTEXT),
        lambda servicer, caller: servicer.Finish(pb.FinishRequest(caller=caller), CONTEXT),
    ],
    ids=[
        "Heartbeat",
        "Configure",
        "Restore",
        "FetchPart",
        "ReleasePart",
        "ScheduleCheckpoint",
        "ScheduleReductions",
        "Finish",
    ],
)
def test_every_call_of_an_older_chief_is_aborted_and_changes_nothing(
    servicer: ControlServicer, plane: Plane, call: Callable[[ControlServicer, pb.Caller], Any]
) -> None:
    older, newer = joined(servicer, "older", 0), joined(servicer, "newer", 0)
    with pytest.raises(AbortedError) as caught:
        call(servicer, older)
    assert caught.value.args[0] == grpc.StatusCode.ABORTED
    assert "worker 0 with incarnation 1 was replaced by the process at" in caught.value.args[1]
    assert "with incarnation 2" in caught.value.args[1]
    state = beat(servicer, newer)
    assert (state.phase, state.epoch, [worker.process for worker in state.workers]) == (pb.EMPTY, 2, ["newer"])
    assert plane.met == [("run", 0, "worker:2222")], "TensorFlow of the older one was made reachable"


def test_a_heartbeat_neither_calls_tensorflow_nor_computes_the_digest_of_the_layout(servicer: ControlServicer) -> None:
    caller = joined(servicer, "worker", 1)
    shard: Any = CountingShard()
    [run] = servicer.runs()
    run.install(shard)
    for number in (1, 2, 3):
        state = beat(servicer, caller, number)
    assert (state.step, state.layout_digest, state.quorum) == (4, "digest of the layout", 2)
    assert state.job_digest == "digest of the job"
    assert dict(state.tables) == {"words": "digest of words"}
    assert shard.calls == ["digest"]
    assert not state.workers, "their number would make it slower"
    assert [worker.index for worker in beat(servicer, joined(servicer, "chief", 0)).workers] == [0, 1]
    assert [worker.index for worker in beat(servicer, caller, 4).workers] == [0], "a worker learns of the chief only"


def test_the_state_of_a_shard_that_is_closed_meanwhile_has_no_counts(servicer: ControlServicer) -> None:
    shard: Any = CountingShard()
    [run] = servicer.runs()
    run.install(shard)
    caller = pb.Caller(run="run", version=psfleet.__version__)
    state = servicer.Describe(pb.DescribeRequest(caller=caller), CONTEXT)
    assert "counters" in shard.calls
    assert (state.step, list(state.pushed)) == (4, [])


def test_a_ps_with_the_cause_of_a_restart_asks_for_patience(plane: Any) -> None:
    servicer = ControlServicer("grpc://localhost:1", "run", "killed by SIGKILL", plane)
    with pytest.raises(AbortedError) as caught:
        joined(servicer, "newcomer", -1)
    assert caught.value.args[0] == grpc.StatusCode.UNAVAILABLE
    caller = joined(servicer, "chief", 0)
    assert caller.member.incarnation == 1
    context: Any = Context()
    with pytest.raises(AbortedError, match="lets no process end the run for another") as caught:
        servicer.Finish(pb.FinishRequest(caller=caller), context)
    assert caught.value.args[0] == grpc.StatusCode.UNAVAILABLE
    assert 0 < float(context.metadata[RETRY_SECS]) <= RELEARN_SECS


def test_a_shared_ps_closes_the_tunnels_of_a_run_that_is_over_or_reset(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer = ControlServicer("grpc://localhost:1", "", "", plane)
    for name in ("over", "reset", "trains"):
        servicer.Describe(pb.DescribeRequest(caller=pb.Caller(run=name, version=psfleet.__version__)), CONTEXT)
    over = servicer.runs()[0]
    monkeypatch.setattr(over, "is_over", lambda: True)
    servicer.drop_finished()
    assert plane.released == ["over"]
    servicer.Reset(pb.ResetRequest(caller=pb.Caller(run="reset", version=psfleet.__version__)), CONTEXT)
    assert plane.released == ["over", "reset"]
    assert [run.name for run in servicer.runs()] == ["trains"]


def test_a_tunnel_that_opens_after_its_run_was_reset_is_closed(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    servicer = ControlServicer("grpc://localhost:1", "", "", plane)
    caller = joined(servicer, "worker", 0)
    open_at: list[str] = []

    def meet(run: str, worker: int, address: str) -> None:
        servicer.Reset(pb.ResetRequest(caller=caller), CONTEXT)
        open_at.append(address)

    monkeypatch.setattr(plane, "meet", meet)
    monkeypatch.setattr(plane, "release", lambda run: open_at.clear())
    beat(servicer, caller)
    assert open_at == []


def test_a_run_that_is_reset_while_a_shared_ps_drops_it_is_closed_once(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer = ControlServicer("grpc://localhost:1", "", "", plane)
    servicer.Describe(pb.DescribeRequest(caller=pb.Caller(run="idle", version=psfleet.__version__)), CONTEXT)
    [run] = servicer.runs()
    shard: Any = CountingShard()
    shard.close = lambda: shard.calls.append("close")
    run.install(shard)

    def reset(*_: Any) -> None:
        taken = run.take_shard()
        if taken is not None:
            taken.close()

    monkeypatch.setattr(run, "is_idle", lambda: True)
    monkeypatch.setattr(run.logger, "warning", reset)
    servicer.drop_finished()
    assert shard.calls.count("close") == 1


def test_a_run_that_ends_while_its_shard_is_built_is_dropped_once_the_shard_can_be_closed(plane: Any) -> None:
    servicer = ControlServicer("grpc://localhost:1", "", "", plane)
    servicer.Describe(pb.DescribeRequest(caller=pb.Caller(run="ended", version=psfleet.__version__)), CONTEXT)
    [run] = servicer.runs()
    run.finish(pb.Outcome(exit_code=70))
    shard: Any = CountingShard()
    shard.close = lambda: shard.calls.append("close")
    with run.building:
        servicer.drop_finished()
        run.install(shard)
    servicer.drop_finished()
    assert shard.calls.count("close") == 1, "nothing ends the update loop of a shard that its run does not have"
    assert servicer.runs() == []


def test_a_hold_that_ends_while_a_shard_is_described_ends_no_call() -> None:
    class EndingHold:
        """A hold that another thread ends after the first read."""

        def __init__(self) -> None:
            self._steps: list[int | None] = [6]

        @property
        def at(self) -> int | None:
            return self._steps.pop() if self._steps else None

    shard: Any = CountingShard()
    shard.hold = EndingHold()
    state = pb.ShardState()
    describe(state, shard, time.monotonic())
    assert state.hold_at == 6
