"""One process as the owner of a worker index, and what a ps knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psfleet.control import control_pb2 as pb

CHIEF = 0
"""Index of the chief, which is set by the platform and never leased."""
LEASE_SECS = 5.0
"""A worker whose last heartbeat is older is not alive, and its index can be leased; it sends one each second."""
NEVER = float("-inf")
"""A time before all others."""


@dataclass(frozen=True)
class Member:
    """A process as the owner of a worker index; see control.proto. Incarnation 0: it has not joined."""

    index: int = CHIEF
    incarnation: int = 0
    process: str = ""

    @classmethod
    def of(cls, member: pb.Member) -> Member:
        """The caller of a request."""
        return cls(member.index, member.incarnation, member.process)

    @property
    def rank(self) -> tuple[int, str]:
        """The owner of an index is the member with the highest rank.

        Two processes can have one incarnation if ps 0 was restarted before any other process had seen the first one.
        """
        return self.incarnation, self.process


@dataclass
class WorkerRecord:
    """What this ps knows of one worker index.

    Attributes:
        owner: The process that has the index.
        last_heartbeat: When its lease was renewed.
        address: host:port of its TensorFlow server.
        joins: Number of processes that have had the index.
        cause: Why the present one was restarted; empty if it was not.
        program: Digest of its training program.
        step: Global step of its local parameters.
        pushed: Gradients that the present process has pushed.
        beat: Number of its newest heartbeat.
        is_reading: Whether it starts, or waits for its first batch.
        has_left: Whether it reported that it leaves.
        has_session: Whether it has a TensorFlow session with the fleet.
        has_outcome: Whether it has received the run's outcome.
    """

    owner: Member
    last_heartbeat: float
    address: str = ""
    joins: int = 1
    cause: str = ""
    program: str = ""
    step: int = 0
    pushed: int = 0
    beat: int = 0
    is_reading: bool = True
    has_left: bool = False
    has_session: bool = False
    has_outcome: bool = False

    def is_alive(self, now: float) -> bool:
        """Whether its last heartbeat is recent and did not say that it leaves."""
        return not self.has_left and now - self.last_heartbeat < LEASE_SECS

    def report(self, request: pb.HeartbeatRequest, now: float, has_outcome: bool) -> None:
        """Stores what the worker reports of itself, and renews its lease; the reply may have the run's outcome."""
        self.beat, self.last_heartbeat = request.beat, now
        self.step, self.pushed, self.is_reading = request.step, request.pushed, request.reading_first_batch
        self.joins = max(self.joins, request.joins)
        self.address = request.address or self.address
        self.program = request.program
        self.has_left, self.has_session = request.leaving, request.generation >= 0
        self.has_outcome = has_outcome

    def state(self, now: float) -> pb.WorkerState:
        """As the control plane returns it."""
        return pb.WorkerState(
            index=self.owner.index,
            step=self.step,
            is_alive=self.is_alive(now),
            pushed=self.pushed,
            joins=self.joins,
            cause=self.cause,
            address=self.address,
            incarnation=self.owner.incarnation,
            process=self.owner.process,
            program=self.program,
            reading_first_batch=self.is_reading,
        )


def former_index(workers: Mapping[int, WorkerRecord], address: str, process: str) -> int | None:
    """The index that a process had before, or one at its address, but not the chief's; None: it had none.

    Args:
        workers: Of the run, by index.
        address: host:port of the process; may be empty.
        process: Its name.
    """
    for index, worker in workers.items():
        has_its_address = address and worker.address == address
        if index != CHIEF and (has_its_address or worker.owner.process == process):
            return index
    return None


def free_index(workers: Mapping[int, WorkerRecord], worker_limit: int, now: float) -> int:
    """The lowest index without a live worker, but not the chief's; `worker_limit` if all are taken."""
    taken = {index for index, worker in workers.items() if worker.is_alive(now)}
    free = (index for index in range(CHIEF + 1, worker_limit) if index not in taken)
    return next(free, worker_limit)


def have_left(workers: Iterable[WorkerRecord], now: float) -> bool:
    """Whether each live worker has received the run's outcome, and closed its session."""
    return all(worker.has_outcome and not worker.has_session for worker in workers if worker.is_alive(now))
