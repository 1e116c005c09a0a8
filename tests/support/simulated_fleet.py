"""A fleet whose processes, network and clock are simulated around real fleet views; it checks what must always hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from ps_service.fleet_view import LINGER_SECS, FleetView
from ps_service.relearning import RELEARN_SECS, Relearning
from ps_service.worker_record import CHIEF, LEASE_SECS, NEVER, Member
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, PsfleetError, ReplacedError
from support.simulated_process import Process

WORKER_LIMIT = 4
SETTLE_SECS = LEASE_SECS / 2
"""Between two heartbeats of a process when all processes run on: less than a lease."""

Message = Callable[[FleetView, float], Any]
"""A call of a ps: its view and the time; returns what the caller gets."""


class SimulatedFleet:
    """Worker processes around the views of some ps.

    Args of the constructor:
        knows_restarts: Whether a restarted ps knows that it was restarted.
    """

    def __init__(self, num_ps: int, knows_restarts: bool) -> None:
        self.now = 100.0
        self.views = [FleetView() for _ in range(num_ps)]
        self.processes: list[Process] = []
        self._knows_restarts = knows_restarts
        self._names = itertools.count()
        self._delivered: list[list[Message]] = [[] for _ in range(num_ps)]
        self._granted: set[Member] = set()

    def start(self, wants: int, address: str, program: str = "1") -> None:
        """A platform starts a process, and ends the one that was at the address."""
        for process in self.processes:
            process.is_dead = process.is_dead or process.address == address
        self.processes.append(Process(wants, address, self._name(), program))

    def restart_ps(self, shard: int) -> None:
        """A ps loses its view, and the calls that are on their way to it."""
        shard %= len(self.views)
        settled_at = self.now + RELEARN_SECS
        self.views[shard] = FleetView(Relearning(settled_at if self._knows_restarts else NEVER, settled_at))
        self._delivered[shard].clear()

    def call_join(self, process: Process) -> None:
        """The next call of a process's join: reads the other ps, asks ps 0, registers with the other ps.

        Raises:
            BadJobError: All indices are taken, or the run has another program.
        """
        try:
            if process.stage == 0:
                others = self.views[1:]
                process.known = [worker.state(self.now) for view in others for worker in view.workers.values()]
            elif process.stage == 1:
                self._ask(process)
            else:
                self._register(process, process.stage - 1)
            process.stage += 1
            process.has_joined = process.stage > len(self.views)
        except ReplacedError:
            process.name, process.stage, process.member = self._name(), 0, None
        except LostPeerError:
            process.stage = 0

    def beat(self, process: Process, shard: int, leaving: bool = False) -> None:
        """A process that has joined sends a heartbeat."""
        member = self._member(process)
        shard %= len(self.views)
        process.beat += 1
        sender = pb.Member(index=member.index, incarnation=member.incarnation, process=member.process)
        request = pb.HeartbeatRequest(
            caller=pb.Caller(member=sender), beat=process.beat, joins=process.joins, address=process.address,
            leaving=leaving, program=process.program,
        )  # fmt: skip
        try:
            self._send(shard, lambda view, now: view.heartbeat(request, now))
        except ReplacedError:
            self._end(process, self.views[shard])
        else:
            process.renewed_at = self.now if shard == 0 else process.renewed_at
            # A process that has received the outcome of the run ends, too.
            process.is_dead = leaving or self.views[shard].outcome is not None

    def configure(self, process: Process, shard: int, generation: int) -> None:
        """The chief configures a ps."""
        member = self._member(process)

        def deliver(view: FleetView, now: float) -> None:
            view.admit_chief(member, now)
            view.check_generation(generation)
            view.configured(generation, quorum=2)

        self._send_as(process, shard, deliver)

    def finish(self, process: Process, shard: int, exit_code: int) -> None:
        """A process ends the run."""
        member, outcome = self._member(process), pb.Outcome(exit_code=exit_code)

        def deliver(view: FleetView, now: float) -> None:
            view.admit_finish(member, now)
            view.finish(outcome, now)

        before = self.views[0].outcome
        self._send_as(process, shard, deliver)
        if before is None and self.views[0].outcome is not None and self._knows_restarts:
            for other in self.processes:
                has_lease = self.now - other.renewed_at < LEASE_SECS and not (other.is_dead or other.is_refused)
                is_newer = other.member is not None and other.member.index == member.index
                is_newer = is_newer and other.member is not None and other.member.rank > member.rank
                assert not (has_lease and is_newer), f"{process} ended the run of {other}"

    def deliver_again(self, shard: int, which: int) -> None:
        """A call that the ps has answered before arrives once more."""
        shard %= len(self.views)
        delivered, view = self._delivered[shard], self.views[shard]
        if delivered:
            before = content(view)
            _outcome_of(delivered[which % len(delivered)], view, self.now)
            assert content(view) == before, "a late call changed the view"

    def settle(self) -> None:
        """Lets all processes run on until nothing changes, and checks that every wait has ended and all ps agree."""
        for process in self.processes:
            process.is_frozen = False
        for _ in range(math.ceil((RELEARN_SECS + LEASE_SECS) / SETTLE_SECS) + 2):
            for process in self.processes:
                self._run(process)
            self.now += SETTLE_SECS
            if all(process.has_joined for process in self.processes if process.acts):
                break
        for process in self.processes:
            self._run(process)
        for process in self.processes:
            waits_for_chief = any(view.program.differs(process.program) for view in self.views)
            assert not process.acts or process.has_joined or waits_for_chief, f"{process} still waits to join"
        # One that waits for the chief of a changed program has an index of ps 0 only.
        members = [self._member(process) for process in self.processes if process.acts and process.has_joined]
        assert len({member.index for member in members}) == len(members), f"two processes have one index: {members}"
        for view in self.views:
            for member in members:
                assert view.workers[member.index].owner == member, "a ps has another owner"

    def end(self) -> None:
        """Ends the run where it has not ended; checks that every ps may go, whatever the workers do."""
        for view in self.views:
            before = view.outcome
            view.finish(pb.Outcome(exit_code=75), self.now)
            assert before in (None, view.outcome), "a run that had ended has another outcome"
            assert view.is_over(self.now + LINGER_SECS + 0.1)

    def _run(self, process: Process) -> None:
        """One heartbeat interval of a process."""
        while process.acts and not process.has_joined:
            stage = process.stage
            try:
                self.call_join(process)
            except BadJobError:
                process.is_dead = True
            if process.stage <= stage:
                break
        for shard in range(len(self.views)):
            if process.acts and process.has_joined:
                self.beat(process, shard)

    def _ask(self, process: Process) -> None:
        request = pb.JoinRequest(
            index=process.wants, worker_limit=WORKER_LIMIT, process=process.name, address=process.address,
            known=process.known, program=process.program,
        )  # fmt: skip
        known = {worker.owner for worker in self.views[0].workers.values()}
        reply = self._send(0, lambda view, now: view.join(request, now))
        process.member = Member(reply.index, reply.incarnation, process.name)
        process.joins = reply.joins
        if process.member not in known:
            self._check_grant(process, process.member)
        self._granted.add(process.member)
        self._check_program(process)
        process.renewed_at = self.now

    def _check_program(self, process: Process) -> None:
        """No process is admitted beside one with another program that has a lease, as far as ps 0 knows its leases."""
        assert self.views[0].outcome is not None or self.views[0].program.digest == process.program
        for other in self.processes if self._knows_restarts and self.views[0].outcome is None else []:
            has_lease = self.now - other.renewed_at < LEASE_SECS and not (other.is_dead or other.is_refused)
            assert not has_lease or other.program == process.program, f"{process} joined beside {other}"

    def _check_grant(self, process: Process, member: Member) -> None:
        assert process.wants in (-1, member.index)
        assert process.wants == CHIEF or member.index != CHIEF, "the chief's index was leased"
        assert member not in self._granted, "an incarnation was granted twice"
        if not self._knows_restarts or process.wants >= 0:
            return
        before = [other for other in self._granted if other.index == member.index]
        newest = max(before, key=lambda other: other.rank, default=None)
        for other in self.processes:
            if newest is not None and other.member == newest and not (other.is_dead or other.is_refused):
                assert self.now - other.renewed_at >= LEASE_SECS, f"{other} lost its lease to {process}"

    def _register(self, process: Process, shard: int) -> None:
        assert process.member is not None
        member = process.member
        request = pb.JoinRequest(
            index=member.index, process=member.process, address=process.address, incarnation=member.incarnation,
            joins=process.joins, program=process.program,
        )  # fmt: skip
        process.joins = max(process.joins, self._send(shard, lambda view, now: view.join(request, now)).joins)

    def _send_as(self, process: Process, shard: int, message: Message) -> None:
        try:
            self._send(shard % len(self.views), message)
        except ReplacedError:
            self._end(process, self.views[shard % len(self.views)])
        except (LostPeerError, BadJobError):
            pass

    def _send(self, shard: int, message: Message) -> Any:
        """Delivers a call twice: the second time changes nothing and has the same answer."""
        view = self.views[shard]
        before = admission(view)
        outcome = _outcome_of(message, view, self.now)
        check_growth(before, admission(view))
        after = content(view)
        again = _outcome_of(message, view, self.now)
        assert content(view) == after, "a repeated call changed the view"
        if isinstance(outcome, PsfleetError):
            assert type(again) is type(outcome)
            raise outcome
        assert again == outcome or isinstance(outcome, bool), "a repeated call was answered otherwise"
        self._delivered[shard].append(message)
        return outcome

    def _end(self, process: Process, view: FleetView) -> None:
        """A process was refused because another has its index, or the run another program: there must be one."""
        member = self._member(process)
        newer = [other for other in self._granted if other.index == member.index and other.rank > member.rank]
        assert newer or view.program.differs(process.program), f"{process} was refused without a successor"
        process.is_refused = True

    def _member(self, process: Process) -> Member:
        assert process.member is not None, f"{process} has not joined"
        return process.member

    def _name(self) -> str:
        return f"process {next(self._names)}"


Admission = tuple[int, dict[int, Member], int, pb.Outcome | None]


def admission(view: FleetView) -> Admission:
    """Who is admitted by a ps: epoch, owners, generation and outcome."""
    return view.epoch, {index: worker.owner for index, worker in view.workers.items()}, view.generation, view.outcome


def content(view: FleetView) -> tuple[Any, ...]:
    """All that a ps stores of a run, except when leases were renewed."""
    workers = [vars(worker) | {"last_heartbeat": 0} for worker in view.workers.values()]
    return view.epoch, workers, view.generation, view.quorum, view.outcome, view.finished_at, view.program.digest


def check_growth(before: Admission, after: Admission) -> None:
    """Epoch, owners' incarnations and generation only grow, and a run that has ended stays so."""
    assert after[0] >= max([before[0], *[member.incarnation for member in after[1].values()]])
    assert all(after[1][index].rank >= member.rank for index, member in before[1].items())
    assert after[2] >= before[2]
    assert before[3] in (None, after[3])


def _outcome_of(message: Message, view: FleetView, now: float) -> Any:
    try:
        return message(view, now)
    except PsfleetError as error:
        return error
