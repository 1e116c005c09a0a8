"""A standing fleet whose servers are threads of the test's process, for clients in the same process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import psfleet
from psfleet.addresses import Address
from psfleet.control.clients import ClientServicer
from psfleet.control.server import serving
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetDeadlines
from psfleet.job.sections import Device
from psfleet.processes.ports import free_addresses
from psfleet.tf.client import Fleet
from psfleet.tf.client.own_server import own_server
from psfleet.tf.client_sessions import drop_sessions
from psfleet.tf.server import boot
from psfleet.tls.data_plane import Direct

STALL_SECS = 30.0
"""Far more than a call takes."""


@dataclass
class InProcessFleet:
    """The fleet; its TensorFlow servers run until the process ends.

    Attributes:
        access: What clients know of it.
        servicers: Of each task, ps first.
    """

    access: FleetAccess
    servicers: list[ClientServicer] = field(default_factory=list)

    def client(self) -> Fleet:
        """A new connection; all of them share this process's server."""
        return Fleet(self.access, own_server(lambda: Direct(free_addresses(1)[0], ()), self.access.device))

    def num_sessions(self) -> list[int]:
        """The number of clients' sessions on each task."""
        return [servicer.num_sessions for servicer in self.servicers]


@contextmanager
def in_process_fleet(num_ps: int = 2, num_workers: int = 1) -> Iterator[InProcessFleet]:
    """Context manager for a fleet that serves clients."""
    addresses = free_addresses(num_ps + num_workers)
    texts = [address.data for address in addresses]
    access = FleetAccess(
        name="lab",
        id=f"lab-{secrets.token_hex(4)}",
        version=psfleet.__version__,
        ps=texts[:num_ps],
        workers=texts[num_ps:],
        device=Device(intra_op_threads=1, inter_op_threads=2),
        deadlines=FleetDeadlines(stall_secs=STALL_SECS),
    )
    fleet = InProcessFleet(access)
    with ExitStack() as stack:
        for address in addresses:
            fleet.servicers.append(stack.enter_context(_task(access, address)))
        yield fleet


@contextmanager
def _task(access: FleetAccess, address: Address) -> Iterator[ClientServicer]:
    target = boot(address, access.device)
    servicer = ClientServicer(access, partial(drop_sessions, target))
    with serving(address, clients=servicer):
        yield servicer
