"""The training program of a run as a ps knows it: every process that joins must have the same; no threads, no I/O.

The first process that joins sets it. A restarted ps learns its digest again from heartbeats, and from what joining
workers have read from the other ps. A chief may bring another program if no worker is alive: ps that serve several runs
keep a run whose launcher was killed, and it may be resumed with another program. A lease says that a worker was alive
some seconds ago: only a heartbeat after a process has asked to join proves that the run continues with its program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ps_service.worker_record import CHIEF, WorkerRecord
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, ReplacedError
from psfleet.job.program_files import first_difference


@dataclass
class RunProgram:
    """The digest of a run's training program, and when it may be set or changed; see the module.

    Attributes:
        digest: Of all files (see `psfleet.job.program_files`); empty: not known yet.
        files: The digest of each; empty if only the digest of all is known.
    """

    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)

    def learn(self, digest: str) -> None:
        """Stores the digest that a member of the run reports, unless this ps knows one."""
        self.digest = self.digest or digest

    def differs(self, digest: str) -> bool:
        """Whether a digest is another one than the run's; not if one of the two is unknown."""
        return bool(digest and self.digest and digest != self.digest)

    def check(
        self, request: pb.JoinRequest, workers: Collection[WorkerRecord], now: float, relearn_until: float
    ) -> None:
        """Checks that a process that joins has the run's program, or may change it.

        Args:
            request: A process that does not say which program it has is admitted, too.
            workers: Of the run, as this ps knows them.
            now: The time.
            relearn_until: Until then this ps, which was restarted, may not know the program of a live worker.

        Raises:
            LostPeerError: This ps does not know the program yet, or whether the run's workers are gone, or only the
                chief may change it now.
            BadJobError: The process has another program; names the first file that differs, if that is known.
        """
        asked_at = self._asked_at.setdefault(request.process, now)
        is_relearning = now < relearn_until
        if request.program and not self.digest and not request.incarnation and is_relearning:
            raise LostPeerError("this ps was restarted and does not know the run's program yet")
        if not self.differs(request.program):
            return
        alive = [worker for worker in workers if worker.is_alive(now)]
        if any(worker.last_heartbeat > asked_at for worker in alive):
            raise BadJobError(self._difference(request))
        if alive or any(known.is_alive for known in request.known):
            raise LostPeerError(
                f"{self._difference(request)}; waiting for a heartbeat of its workers, which may be gone, "
                "or the end of their leases"
            )
        if is_relearning:
            raise LostPeerError(
                f"{self._difference(request)}; this ps was restarted and does not know all workers of the run yet"
            )
        if request.index != CHIEF:
            # When a run is resumed, its workers may join before its chief.
            raise LostPeerError(
                f"{self._difference(request)}; no worker of the run is alive: waiting until its chief joins"
            )

    def admitted(self, request: pb.JoinRequest) -> None:
        """Stores the program of a process that has been checked and has joined."""
        if self.differs(request.program):
            self.digest, self.files = "", {}
        self.learn(request.program)
        if request.program:
            self.files = self.files or dict(request.program_files)

    def heartbeat(self, request: pb.HeartbeatRequest) -> None:
        """Learns the program from the owner of an index; that of the chief counts more than what this ps knows.

        Raises: As `check_member`.
        """
        if request.caller.member.index == CHIEF and self.differs(request.program):
            self.digest, self.files = request.program, {}
        self.learn(request.program)
        self.check_member(request.caller.member.index, request.program)

    def check_member(self, index: int, digest: str) -> None:
        """Checks that the owner of an index has the run's program.

        Raises:
            ReplacedError: It was silent while the run was resumed with another program.
        """
        if self.differs(digest):
            raise ReplacedError(
                f"worker {index} has the training program {digest} and was silent; "
                f"the run was resumed with another training program, {self.digest}"
            )

    def _difference(self, request: pb.JoinRequest) -> str:
        file = first_difference(self.files, request.program_files) if self.files else ""
        return (
            f"the training program of the process at {request.address or 'another address'} has digest "
            f"{request.program}, expected {self.digest}, which the run was started with"
            f"{f': {file} differs' if file else ''}; stop the run and start it again to train another program, "
            f"or delete its state from the ps: `psfleet reset {request.caller.run or 'RUN'} --ps HOST:PORT …`"
        )
