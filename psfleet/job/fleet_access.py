"""Access to a standing fleet, for its processes and clients: its identity, addresses and timeouts."""

from __future__ import annotations

import secrets
from typing import ClassVar, Self

from pydantic import Field

import psfleet
from psfleet.errors import BadJobError
from psfleet.job.access import Access
from psfleet.job.fleet_file import FleetDeadlines, FleetFile
from psfleet.job.sections import Device


class FleetAccess(Access):
    """One start of a standing fleet.

    Attributes:
        name: Of the fleet.
        id: Of this start: another one has other processes, with nothing of what these hold.
        version: Of psfleet; must be equal in all processes and clients.
        ps: `host:port` of the TensorFlow server of each ps; the control plane has the next port.
        workers: The same of each plain worker.
        device: Threads and accelerators of each process and client.
        deadlines: Timeouts.
        tls: Whether its traffic is encrypted, and both ends are authenticated.
    """

    DESCRIPTION: ClassVar[str] = "the access to a standing fleet"

    name: str
    id: str
    version: str
    ps: list[str] = Field(min_length=1)
    workers: list[str] = Field(default_factory=list)
    device: Device = Field(default_factory=Device)
    deadlines: FleetDeadlines = Field(default_factory=FleetDeadlines)
    tls: bool = False

    @classmethod
    def of_new_start(cls, file: FleetFile, ps: list[str], workers: list[str]) -> Self:
        """A new start of a fleet, with an identifier of its own.

        Args:
            ps, workers: See the class.
        """
        return cls(
            name=file.name,
            id=f"{file.name}-{secrets.token_hex(4)}",
            version=psfleet.__version__,
            ps=ps,
            workers=workers,
            device=file.device,
            deadlines=file.deadlines,
            tls=file.tls,
        )

    def require_version(self) -> Self:
        """Returns this access if the fleet is of this version of psfleet.

        Raises:
            BadJobError: It is of another one.
        """
        if self.version != psfleet.__version__:
            raise BadJobError(f"fleet {self.name} has psfleet {self.version}, expected {psfleet.__version__}")
        return self
