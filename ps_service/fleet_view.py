"""Who belongs to a run and how it ended, as one versioned state machine: no threads, no clock, no I/O.

Every call takes a message and the time, and returns a decision or raises the error that the caller gets:
`ReplacedError` if another process has the caller's index, `LostPeerError` if it shall try again, `BadJobError` if it
would be refused again.

An index belongs to one *incarnation*, a number that ps 0 grants and that grows with each process that joins; the
*epoch* is the highest one known. Of two processes with one index the one with the higher incarnation owns it, on every
ps: a process that did not answer for a while, and whose index was granted to another, is refused from then on.
A restarted ps 0 starts with an empty view. It learns leases and epoch again from the heartbeats of their owners, and
from what joining workers have read from the other ps; for `RELEARN_SECS` it grants no index that may have an owner, and
lets no process end the run (`ps_service/relearning.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ps_service.relearning import Relearning
from ps_service.run_program import RunProgram
from ps_service.worker_record import CHIEF, NEVER, Member, WorkerRecord, former_index, free_index, have_left
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, ReplacedError

LINGER_SECS = 5.0
"""How long a ps keeps a run that is over, so that each worker receives the outcome."""


@dataclass
class FleetView:
    """One run as one ps sees it.

    Attributes:
        relearning: Whether this ps was restarted and may not know the owners.
        epoch: Highest incarnation that this ps knows; never falls.
        workers: By index.
        generation: Newest one that was configured; never falls.
        quorum: Of that generation.
        stop_signal: The signal by which that generation ends before the final step of the job; 0: it does not.
        outcome: How the run ended; never changes once it is set.
        finished_at: When it ended.
        program: The training program, which is the same in all processes.
    """

    relearning: Relearning = field(default_factory=Relearning)
    epoch: int = 0
    workers: dict[int, WorkerRecord] = field(default_factory=dict)
    generation: int = 0
    quorum: int = 0
    stop_signal: int = 0
    outcome: pb.Outcome | None = None
    finished_at: float = NEVER
    program: RunProgram = field(default_factory=RunProgram)
    _granted: dict[str, pb.JoinReply] = field(default_factory=dict)

    def join(self, request: pb.JoinRequest, now: float) -> pb.JoinReply:
        """Grants an index, or registers the one that another ps has granted; a repeated request changes nothing.

        A requested index is granted at once: its platform started the process in place of the one before. For -1 it is
        the index that the address or the process had, or the lowest without a live worker.

        Raises:
            ReplacedError: The process had an index that another process has now.
            LostPeerError: This ps was restarted and relearns the leases and the program.
            BadJobError: All indices are taken, or the process has another training program than the run.
        """
        for known in request.known:
            self._learn(known, now)
        # Once the run is over, a process joins only to receive the outcome.
        if self.outcome is None:
            self.program.check(request, self.workers.values(), now, self.relearning.until)
        reply = self._register(request, now) if request.incarnation else self._grant(request, now)
        if self.outcome is None:
            self.program.admitted(request)
        return reply

    def admit(self, caller: Member, now: float, joins: bool = False) -> None:
        """Admits a call of the owner of an index, or of a process that was granted the index elsewhere or before.

        Args:
            caller: Who calls.
            now: The time.
            joins: Whether the caller registers with this ps; else it has done so before.

        Raises:
            ReplacedError: The index has an owner with a higher incarnation, or the run was resumed with another program
                than the caller's.
        """
        worker = self.workers.get(caller.index)
        if worker is not None and worker.owner.rank > caller.rank:
            raise ReplacedError(
                f"worker {caller.index} with incarnation {caller.incarnation} was replaced by the process at "
                f"{worker.address or 'another address'} with incarnation {worker.owner.incarnation}"
            )
        if caller.incarnation and (worker is None or worker.owner != caller):
            worker = self._own(caller, now)
            if not joins:
                self.relearning.begin()
        # A chief with the former program has been replaced; the program of any other counts more than this ps knows.
        if worker is not None and caller.index != CHIEF and self.outcome is None:
            self.program.check_member(caller.index, worker.program)

    def admit_chief(self, caller: Member, now: float) -> None:
        """Admits a call that only the chief may make, and only while the run is not over.

        Raises:
            ReplacedError: Another process is the chief.
            LostPeerError: The run is over; the reply to the caller's next heartbeat has the outcome.
            BadJobError: The caller is not the chief.
        """
        if caller.index != CHIEF:
            raise BadJobError(f"called by worker {caller.index}, expected the chief")
        self.admit(caller, now)
        if self.outcome is not None:
            raise LostPeerError(f"the run is over: {self.outcome.message}")

    def admit_finish(self, caller: Member, now: float) -> None:
        """Admits a call that ends the run.

        Raises: As `admit`; and LostPeerError while this ps, which was restarted, may not know the index's owner: a
            heartbeat of the caller proves nothing, because it can come before that of its successor.
        """
        self.admit(caller, now)
        if self.outcome is None:
            self.relearning.check("lets no process end the run", now)

    def heartbeat(self, request: pb.HeartbeatRequest, now: float) -> bool:
        """Renews a lease and stores what a worker reports of itself.

        Returns:
            False for a repeated or late heartbeat, which changes nothing, and for that of a replaced worker once the
            run is over: it needs the outcome only. A replaced chief is refused, because it would write a report.

        Raises:
            ReplacedError: Another process has the caller's index.
            BadJobError: The caller has not joined.
        """
        caller = Member.of(request.caller.member)
        if not caller.incarnation:
            raise BadJobError(f"heartbeat of worker {caller.index} without an incarnation, expected that of its join")
        try:
            self.admit(caller, now)
            if self.outcome is None:
                self.program.heartbeat(request)
        except ReplacedError:
            if self.outcome is None or caller.index == CHIEF:
                raise
            return False
        worker = self.workers[caller.index]
        if request.beat <= worker.beat:
            return False
        worker.report(request, now, has_outcome=self.outcome is not None)
        return True

    def check_generation(self, generation: int) -> None:
        """Refuses to configure an older generation than the newest.

        Raises:
            LostPeerError: It is older: the caller read the state before another chief configured this ps.
        """
        if generation < self.generation:
            raise LostPeerError(f"generation {generation} requested, expected one above {self.generation}")

    def configured(self, generation: int, quorum: int) -> None:
        """Stores the generation that this ps has started."""
        if generation > self.generation:
            self.stop_signal = 0
        self.generation, self.quorum = max(self.generation, generation), quorum

    def finish(self, outcome: pb.Outcome, now: float) -> bool:
        """Stores how the run ended; returns False if that was known already, and keeps the first outcome."""
        if self.outcome is not None:
            return False
        self.outcome, self.finished_at = outcome, now
        return True

    def awaits_first_batch(self, now: float, caller: int) -> bool:
        """Whether a live worker other than the caller waits for its first batch."""
        return any(
            worker.is_reading and worker.is_alive(now) for index, worker in self.workers.items() if index != caller
        )

    def is_over(self, now: float) -> bool:
        """Whether the run has ended and every live worker has received the outcome, or `LINGER_SECS` have passed."""
        if self.outcome is None:
            return False
        return self.all_workers_notified(now) or now - self.finished_at > LINGER_SECS

    def all_workers_notified(self, now: float) -> bool:
        """Whether each live worker has received the outcome, and closed its session.

        A TensorFlow session that is closed after its peer has exited waits for that peer without limit.
        """
        return have_left(self.workers.values(), now)

    def _register(self, request: pb.JoinRequest, now: float) -> pb.JoinReply:
        member = Member(request.index, request.incarnation, request.process)
        self.admit(member, now, joins=True)
        worker = self.workers[member.index]
        worker.joins = max(worker.joins, request.joins)
        worker.address, worker.cause, worker.program = request.address, request.cause, request.program
        return pb.JoinReply(index=member.index, joins=worker.joins, incarnation=member.incarnation)

    def _grant(self, request: pb.JoinRequest, now: float) -> pb.JoinReply:
        granted = self._granted.get(request.process)
        if granted is not None:
            member = Member(granted.index, granted.incarnation, request.process)
            self.admit(member, now)
            self.workers[member.index].last_heartbeat = now
            return granted
        index = request.index if request.index >= 0 else self._free_index(request, now)
        if index >= request.worker_limit:
            raise BadJobError(
                f"worker index {request.index} requested, all {request.worker_limit} of fleet.max_workers are taken"
            )
        worker = self._own(Member(index, self.epoch + 1, request.process), now)
        worker.address, worker.cause, worker.program = request.address, request.cause, request.program
        reply = pb.JoinReply(index=index, joins=worker.joins, incarnation=worker.owner.incarnation)
        self._granted[request.process] = reply
        return reply

    def _free_index(self, request: pb.JoinRequest, now: float) -> int:
        index = former_index(self.workers, request.address, request.process)
        if index is None:
            self.relearning.check("leases no worker index", now)
            index = free_index(self.workers, request.worker_limit, now)
        return index

    def _learn(self, known: pb.WorkerState, now: float) -> None:
        """Stores what another ps knows of an index, unless this ps knows a newer owner."""
        if known.is_alive:
            self.program.learn(known.program)
        member = Member(known.index, known.incarnation, known.process)
        worker = self.workers.get(member.index)
        if not member.incarnation or (worker is not None and worker.owner.rank >= member.rank):
            return
        self.relearning.begin()
        worker = self._own(member, now if known.is_alive else NEVER)
        worker.program = known.program
        worker.address, worker.joins = known.address, max(worker.joins, known.joins)

    def _own(self, member: Member, now: float) -> WorkerRecord:
        """Makes a member the owner of its index."""
        before = self.workers.get(member.index)
        joins = 1 if before is None else before.joins + (before.owner.process != member.process)
        self.epoch = max(self.epoch, member.incarnation)
        worker = self.workers[member.index] = WorkerRecord(member, now, joins=joins)
        return worker
