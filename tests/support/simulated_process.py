"""A process of the simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

from ps_service.worker_record import NEVER, Member
from psfleet.control import control_pb2 as pb


@dataclass
class Process:
    """A worker process.

    Attributes:
        wants: The index that its platform sets; -1: any.
        address: A platform starts no process at an address before the one there has ended.
        name: Unique for each attempt to join.
        program: Digest of its training program.
        stage: Number of the calls of its join that were answered.
        has_joined: Whether every ps has registered it.
        member: Once ps 0 has granted an index.
        is_refused: Whether a ps has refused it because another process or program replaced it; it has ended then.
        renewed_at: When it last renewed its lease on ps 0.
    """

    wants: int
    address: str
    name: str
    program: str = ""
    stage: int = 0
    has_joined: bool = False
    member: Member | None = None
    joins: int = 0
    beat: int = 0
    is_frozen: bool = False
    is_dead: bool = False
    is_refused: bool = False
    renewed_at: float = NEVER
    known: list[pb.WorkerState] = field(default_factory=list)

    @property
    def acts(self) -> bool:
        """Whether it runs and may send calls."""
        return not (self.is_frozen or self.is_dead or self.is_refused)
