"""The recorded state of a standing fleet: its access, and its processes."""

from __future__ import annotations

import signal
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from psfleet.addresses import Address
from psfleet.job.fleet_access import FleetAccess
from psfleet.processes.identity import is_alive, send_signal

RUNNING: Final = "running"
RESTARTING: Final = "restarting"
FAILED: Final = "failed"


class TaskState(BaseModel):
    """One task and its present or last process.

    Attributes:
        role: ps or worker.
        index: Within the role.
        address: `host:port` of its TensorFlow server.
        state: running; restarting: its process has ended and is started again; failed: it would only fail again.
        pid: Process id; 0 before the first process.
        identity: See `psfleet.processes.identity`.
        started: Start of its process in seconds since 1970.
        restarts: Number of restarts.
        cause: Why the process before, or the last one, ended; empty: none has.
    """

    model_config = ConfigDict(extra="forbid")

    role: Literal["ps", "worker"]
    index: int
    address: str
    state: Literal["running", "restarting", "failed"] = RESTARTING
    pid: int = 0
    identity: str = ""
    started: float = 0.0
    restarts: int = 0
    cause: str = ""

    @property
    def name(self) -> str:
        """The name in messages: `ps 0`."""
        return f"{self.role} {self.index}"

    @property
    def control_port(self) -> int:
        """Port of its control plane."""
        return Address.parse(self.address).control_port

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return is_alive(self.pid, self.identity)

    def kill(self) -> None:
        """Kills its process, if it runs."""
        send_signal(self.pid, self.identity, signal.SIGKILL)


class FleetState(BaseModel):
    """One start of a fleet, as its supervisor records it.

    Attributes:
        access: What processes and clients know of the fleet.
        tasks: Its ps and workers.
        supervisor: Process id of the supervisor.
    """

    model_config = ConfigDict(extra="forbid")

    access: FleetAccess
    tasks: list[TaskState]
    supervisor: int = 0
