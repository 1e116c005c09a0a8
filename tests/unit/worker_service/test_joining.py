"""How a worker joins every ps; the ps are real fleet views without processes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ps_service.run_state import Run
from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control import fleet_client
from psfleet.errors import BadJobError, DeadlineError, LostPeerError, ReplacedError, StoppedError
from psfleet.job.program_files import digest
from psfleet.service.settings import Settings
from worker_service.joining import Membership, finish_as_chief, join


class Ps:
    """The control plane of a ps in this process.

    Args of the constructor:
        beating: Sends a heartbeat, whose program has the digest `program`, after each call of a process that joins.
    """

    def __init__(self, beating: pb.Member | None = None, program: str = "") -> None:
        self.run = Run("run", "")
        self.beating, self.program = beating, program
        self.beats = itertools.count(1)
        self.failures: list[Exception] = []
        self.member = pb.Member()
        self.address = Address("ps", 2222)

    def describe(self) -> pb.ShardState:
        return self.run.state()

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        if self.failures:
            raise self.failures.pop()
        try:
            return self.run.join(request)
        finally:
            self.beat()

    def beat(self) -> None:
        if self.beating is not None:
            caller = pb.Caller(member=self.beating)
            request = pb.HeartbeatRequest(caller=caller, beat=next(self.beats), program=self.program)
            self.run.record_heartbeat(request)

    def identify(self, member: pb.Member) -> None:
        self.member = member

    def finish(self, outcome: pb.Outcome) -> None:
        self.run.finish(outcome, self.member)

    def owners(self) -> list[tuple[int, int]]:
        """Index and incarnation of each worker."""
        return [(worker.index, worker.incarnation) for worker in self.run.workers()]


class Fleet:
    """The clients of some ps."""

    def __init__(self, *ps: Ps) -> None:
        self.ps = ps
        self.member = pb.Member()

    def identify(self, member: pb.Member) -> None:
        self.member = member

    def release_loaders(self, outcome: pb.Outcome) -> None:
        """There are none."""


def joined(
    fleet: Any, index: int = -1, port: int = 2222, start_secs: float = 5.0, program: Mapping[str, str] | None = None
) -> Membership:
    """Joins as a process with settings of its own."""
    settings = Settings(
        job=None, program_folder=Path(), run="run", index=index, ps=(), address=Address("host", port), out=Path(),
        parent_pid=0, cause="",
    )  # fmt: skip
    job: Any = SimpleNamespace(deadlines=SimpleNamespace(start_secs=start_secs), fleet=SimpleNamespace(worker_limit=4))
    stop: Any = SimpleNamespace(event=threading.Event())
    return join(fleet, settings, job, stop, program)


def test_every_ps_knows_the_incarnation_that_ps_0_granted_and_calls_carry_it() -> None:
    first, other = Ps(), Ps()
    fleet = Fleet(first, other)
    assert [joined(fleet, index, port).member.index for index, port in ((0, 1), (-1, 2), (-1, 3))] == [0, 1, 2]
    assert first.owners() == other.owners() == [(0, 1), (1, 2), (2, 3)]
    assert (fleet.member.index, fleet.member.incarnation) == (2, 3)


def test_a_process_with_another_program_than_the_run_does_not_join() -> None:
    first, other, program = Ps(), Ps(), {"program.py": "1"}
    chief = joined(Fleet(first, other), index=0, program=program).member
    restarted = Ps(chief, digest(program))
    first.beating, first.program = chief, digest(program)
    with pytest.raises(BadJobError, match=r"program\.py differs"):
        joined(Fleet(first, other), program={"program.py": "2"})
    with pytest.raises(BadJobError, match="which the run was started with"):
        joined(Fleet(restarted, other), program={"program.py": "2"})
    assert other.owners() == [(0, 1)]


def test_incarnations_and_restarts_are_counted_on_after_ps_0_has_lost_its_table() -> None:
    other = Ps()
    for _ in range(3):
        joined(Fleet(Ps(), other), index=0)
    found = joined(Fleet(Ps(), other), index=0)
    assert (found.member.incarnation, found.joins) == (4, 4)
    assert other.owners() == [(0, 4)]


def test_an_index_that_another_process_gets_meanwhile_is_asked_for_again() -> None:
    first, other = Ps(), Ps()
    other.failures = [ReplacedError("worker 1 with incarnation 1 was replaced"), LostPeerError("connection refused")]
    found = joined(Fleet(first, other))
    assert other.owners() == [(found.member.index, found.member.incarnation)]
    assert first.owners()[-1] == other.owners()[0]


def test_joining_ends_at_its_deadline_and_says_what_the_ps_answered() -> None:
    ps = Ps()
    ps.failures = [LostPeerError("this ps was restarted")] * 100
    with pytest.raises(DeadlineError, match="1 parameter servers to answer; last seen: this ps was restarted"):
        joined(Fleet(ps), start_secs=0.0)


@pytest.mark.parametrize(
    ("index", "must_save", "failures", "joins"),
    [(1, True, 0, False), (0, False, 0, False), (0, True, 0, True), (0, True, 1, False)],
    ids=["a worker", "a chief that leaves for another one", "a chief that saves", "and does not reach the ps"],
)
def test_a_signal_ends_joining_unless_the_chief_can_save_what_others_have_trained(
    index: int, must_save: bool, failures: int, joins: bool
) -> None:
    stop: Any = SimpleNamespace(event=threading.Event(), error=lambda: StoppedError(15), must_save=lambda: must_save)
    stop.event.set()
    ps = Ps()
    ps.failures = [LostPeerError("connection refused")] * failures
    fleet: Any = Fleet(ps)
    settings: Any = SimpleNamespace(index=index, cause="", address=Address("host", 2222))
    job: Any = SimpleNamespace(deadlines=SimpleNamespace(start_secs=5.0), fleet=SimpleNamespace(worker_limit=4))
    if joins:
        assert join(fleet, settings, job, stop).member.index == 0
    else:
        with pytest.raises(StoppedError):
            join(fleet, settings, job, stop)


def chief_of_a_finished_run(*ps: Ps) -> None:
    """Ends the run of a chief before it, which every ps knows."""
    fleet: Any = Fleet(*ps)
    for one in ps:
        one.run.join(pb.JoinRequest(index=0, incarnation=1, process="before", worker_limit=4))
    settings: Any = SimpleNamespace(index=0, cause="it was killed", address=Address("host", 2222))
    job: Any = SimpleNamespace(fleet=SimpleNamespace(worker_limit=4))
    finish_as_chief(fleet, settings, job, pb.Outcome(message="saved and verified"))


@pytest.mark.parametrize(
    "failures",
    [[LostPeerError("deadline exceeded")], [ReplacedError("worker 0 was replaced"), LostPeerError("reset")]],
    ids=["lost", "replaced"],
)
def test_a_ps_that_misses_a_join_receives_the_outcome_of_a_finished_run_later(failures: list[Exception]) -> None:
    late, other = Ps(), Ps()
    late.failures = failures
    chief_of_a_finished_run(late, other)
    assert [one.run.outcome is not None for one in (late, other)] == [True, True]


def test_a_ps_that_never_lets_the_chief_join_keeps_the_outcome_from_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_client, "FINISH_SECS", 0.3)
    lost, refusing, other = Ps(), Ps(), Ps()
    lost.failures = [LostPeerError("connection refused")] * 1000
    refusing.failures = [BadJobError("caller's run is 'other'")] * 1000
    chief_of_a_finished_run(lost, refusing, other)
    assert [one.run.outcome is not None for one in (lost, refusing, other)] == [False, False, True]
    assert len(refusing.failures) == 999, "a refusal is not repeated"
