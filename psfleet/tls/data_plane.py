"""Addresses of TensorFlow's servers: those of the fleet, or with TLS loopback addresses of tunnels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from psfleet.addresses import Address, loader_ports, local_address, run_address
from psfleet.errors import BadJobError
from psfleet.service.host_routes import is_here
from psfleet.service.settings import Settings
from psfleet.tls.listeners import is_on_loopback_alone, listeners

if TYPE_CHECKING:
    # Not loaded without TLS.
    from psfleet.tls.identity import Identity
    from psfleet.tls.tunnel import Tunnels


ANY_HOST = "::" if Path("/proc/self/net/if_inet6").exists() else "0.0.0.0"
"""On which a tunnel accepts connections of other machines."""


@dataclass(frozen=True)
class WorkerRoute:
    """How TensorFlow of this process reaches that of a worker.

    Attributes:
        local: The address to which it connects.
        entry: The address that must accept connections for that: of the worker's tunnel, or of its TensorFlow.
    """

    local: Address
    entry: Address


class DataPlane(Protocol):
    """Interface of the data plane of one process: the addresses that its TensorFlow server uses.

    Attributes:
        own: Address on which TensorFlow of this process listens.
        ps: By index, the address at which it reaches each ps.
        loaders: By index, the address at which it reaches the dispatcher of each loader, once it has met it.
    """

    own: Address
    ps: tuple[Address, ...]
    loaders: tuple[Address, ...]

    def check(self) -> None:
        """Verifies the port of TensorFlow once it listens.

        Raises:
            BadJobError: With TLS, other machines could reach it.
        """

    def meet(self, run: str, worker: int, address: str) -> WorkerRoute:
        """Makes a worker reachable for TensorFlow of this process.

        A ps calls it with each heartbeat of the worker. A client does for the workers that lend it their devices, and
        they do for it, and for the other workers of their replica.

        Args:
            run: Of the worker.
            worker: Its index.
            address: `host:port` of its TensorFlow server, as other machines reach it.

        Raises:
            BadJobError: The address is invalid.
            LostPeerError: The tunnel does not start.
        """

    def meet_loader(self, index: int) -> None:
        """Makes a loader reachable for TensorFlow of this worker; again: nothing.

        Raises:
            LostPeerError: A tunnel does not start.
        """

    def release(self, run: str) -> None:
        """Releases what `meet` has opened for the workers of a run, which is over on this ps."""


@dataclass
class Direct:
    """Without TLS: processes connect to the addresses of the fleet."""

    own: Address
    ps: tuple[Address, ...]
    loaders: tuple[Address, ...] = ()

    def check(self) -> None:
        """See DataPlane; any address is allowed."""

    def meet(self, run: str, worker: int, address: str) -> WorkerRoute:
        """See DataPlane; TensorFlow connects to the worker's own address."""
        del run, worker
        at = Address.parse(address)
        return WorkerRoute(at, at)

    def meet_loader(self, index: int) -> None:
        """See DataPlane; nothing is needed."""

    def release(self, run: str) -> None:
        """See DataPlane; nothing was opened."""


@dataclass
class OnLoopback(Direct):
    """With TLS, for processes of one machine: all addresses are of its loopback, so there is nothing to tunnel."""

    def check(self) -> None:
        """See DataPlane."""
        check_loopback(self.own.port)


class Tunnelled:
    """With TLS: TensorFlow uses only loopback, where each task has a fixed address, the same in all containers.

    In the task's own container TensorFlow listens on it, in the others a tunnel to that task. On a host without
    containers, a ps and a worker share loopback: each reaches the other's TensorFlow without a tunnel. A worker that is
    a ps, too, has the address of the ps.
    """

    def __init__(self, settings: Settings, role: str, index: int, tunnels: Tunnels) -> None:
        self._is_colocated = settings.job is not None and settings.job.fleet.colocate
        is_ps = role == "ps" or self._is_colocated
        self.own = local_address("ps", index) if is_ps else run_address(settings.run, index)
        self.ps = tuple(local_address("ps", shard) for shard in range(len(settings.ps)))
        self.loaders = tuple(loader_ports(loader)[0] for loader in range(len(settings.loaders)))
        self._tunnels = tunnels
        # By host, once its route was found: each heartbeat of a worker asks for its own.
        self._is_here = {settings.address.host: True}
        self._loader_addresses = settings.loaders
        self._met_loaders: set[int] = set()
        accept = Address(ANY_HOST, settings.address.port).tunnel
        self._open(accept, self.own.data, *_callers(settings, role), dials=False)
        if role == "worker":
            for local, address in zip(self.ps, settings.ps, strict=True):
                self._dial(local, address, "worker" if self._is_colocated else "ps")

    def check(self) -> None:
        """See DataPlane."""
        check_loopback(self.own.port)

    def meet(self, run: str, worker: int, address: str) -> WorkerRoute:
        """See DataPlane."""
        peer = Address.parse(address)
        if self._is_colocated:
            # Its tunnel is that to its ps.
            return WorkerRoute(self.ps[worker], Address(peer.host, peer.tunnel_port))
        local = run_address(run, worker)
        is_direct = not self._dial(local, peer, "worker")
        return WorkerRoute(local, local if is_direct else Address(peer.host, peer.tunnel_port))

    def meet_loader(self, index: int) -> None:
        """See DataPlane. One thread of a worker calls it."""
        if index not in self._met_loaders:
            address = self._loader_addresses[index]
            for local, remote in zip(loader_ports(index), (address, address.batches), strict=True):
                self._dial(local, remote, "loader")
            self._met_loaders.add(index)

    def release(self, run: str) -> None:
        """See DataPlane; this ps ends with its run, and its tunnels with it."""

    def _dial(self, local: Address, address: Address, peer: str) -> bool:
        """Opens the tunnel to a peer, unless it is on this host; whether there is a tunnel."""
        if self._shares_host(address):
            return False
        self._open(local.data, address.tunnel, peer, dials=True)
        return True

    def _shares_host(self, peer: Address) -> bool:
        """Whether a peer is on this host, which it may know by another name or address."""
        found = self._is_here.get(peer.host)
        if found is None:
            found = is_here(peer.host)
            if found is not None:
                self._is_here[peer.host] = found
        return bool(found)

    def _open(self, accept: str, connect: str, peer: str, *others: str, dials: bool) -> None:
        from psfleet.tls.route import Route

        self._tunnels.open(Route(accept, connect, peer, dials, others))


def _callers(settings: Settings, role: str) -> tuple[str, ...]:
    """The roles whose TensorFlow connects to a process."""
    if role == "ps":
        return ("worker",)
    job = settings.job
    has_lent_workers = job is not None and (job.update.is_in_graph or job.fleet.parts > 1)
    if job is not None and job.fleet.colocate:
        return ("worker",)
    return ("ps", "worker") if has_lent_workers else ("ps",)


def check_loopback(port: int) -> None:
    """Checks that a port listens on loopback only.

    Raises:
        BadJobError: It does not.
    """
    if not is_on_loopback_alone(port):
        found = ", ".join(sorted(listeners(port))) or "nothing"
        raise BadJobError(f"tls: true, but TensorFlow's port {port} listens on {found}, expected loopback only")


@contextmanager
def data_plane(settings: Settings, role: str, index: int, identity: Identity | None) -> Iterator[DataPlane]:
    """Context manager for the data plane of a process; with an identity, its traffic goes through tunnels.

    Raises:
        BadJobError: stunnel is missing, the index has no port, or a ps with TLS has no run: its tunnels are those of
            the workers of one run.
        LostPeerError: A tunnel does not start.
    """
    if identity is None:
        yield Direct(settings.address, settings.ps, settings.loaders)
        return
    if all(address.is_loopback for address in (settings.address, *settings.ps)):
        yield OnLoopback(settings.address, settings.ps, settings.loaders)
        return
    if not settings.run:
        raise BadJobError("tls: a ps with PSFLEET_TLS serves one run, expected PSFLEET_RUN")
    from psfleet.tls.tunnel import Tunnels

    with Tunnels(identity) as tunnels:
        yield Tunnelled(settings, role, index, tunnels)
