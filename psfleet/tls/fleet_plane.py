"""Tunnels between the processes of a standing fleet, its clients and the workers of its runs: all use loopback."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psfleet.addresses import Address, local_address, run_address
from psfleet.job.fleet_access import FleetAccess
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import ANY_HOST, DataPlane, OnLoopback, WorkerRoute, check_loopback, data_plane

if TYPE_CHECKING:
    # Not loaded without TLS.
    from psfleet.tls.identity import Identity
    from psfleet.tls.tunnel import Tunnels

PS, WORKER, CLIENT = "ps", "worker", "client"
PEERS = {PS: (PS, WORKER, CLIENT), WORKER: (PS, WORKER, CLIENT), CLIENT: (PS, WORKER)}
"""By role, the roles whose TensorFlow connects to a process of it: a client's graph sends tensors between them all.

Workers of runs have the plane `Tunnelled`."""


class FleetTunnels:
    """The data plane, with TLS, of a process or client of a standing fleet. TensorFlow uses only loopback.

    As in `Tunnelled`, each task has a fixed port, the same in all containers: that of its tunnel, or of TensorFlow.
    """

    def __init__(self, settings: Settings, access: FleetAccess, role: str, tunnels: Tunnels) -> None:
        self.own = local_address(role, settings.index)
        self.ps = tuple(local_address("ps", index) for index in range(len(access.ps)))
        self.loaders: tuple[Address, ...] = ()
        self._tunnels = tunnels
        self._lock = threading.Lock()
        # By run, where its workers are reached.
        self._met: dict[str, set[str]] = defaultdict(set)
        # Held while tunnels to clients are opened and closed.
        self._clients_lock = threading.Lock()
        # By the address at which a client is reached, its sessions.
        self._sessions: Counter[str] = Counter()
        self._open(Address(ANY_HOST, settings.address.port).tunnel, self.own.data, PEERS[role], dials=False)
        for peer, addresses in ((PS, access.ps), (WORKER, access.workers)):
            for index, address in enumerate(addresses):
                if (peer, index) != (role, settings.index):
                    self._dial(peer, local_address(peer, index), address)

    def check(self) -> None:
        """See DataPlane."""
        check_loopback(self.own.port)

    def meet(self, run: str, worker: int, address: str) -> WorkerRoute:
        """See DataPlane."""
        local, peer = run_address(run, worker), Address.parse(address)
        self._dial(WORKER, local, address)
        with self._lock:
            self._met[run].add(local.data)
        return WorkerRoute(local, Address(peer.host, peer.tunnel_port))

    def meet_loader(self, index: int) -> None:
        """See DataPlane; only workers of runs, whose plane is another one, read from loaders."""

    def release(self, run: str) -> None:
        """See DataPlane."""
        with self._lock:
            met = self._met.pop(run, set())
        for accept in met:
            self._tunnels.close(accept)

    @contextmanager
    def meet_client(self, index: int, address: str) -> Iterator[None]:
        """Context manager for a session of a client: with the first the client is reachable, with the last not longer.

        Args:
            address: `host:port` of the client.

        Raises:
            BadJobError: The address or the index is invalid.
            LostPeerError: The tunnel does not start.
        """
        local = local_address(CLIENT, index)
        with self._clients_lock:
            self._dial(CLIENT, local, address)
            self._sessions[local.data] += 1
        try:
            yield
        finally:
            with self._clients_lock:
                self._sessions[local.data] -= 1
                if not self._sessions[local.data]:
                    del self._sessions[local.data]
                    self._tunnels.close(local.data)

    def _dial(self, role: str, local: Address, address: str) -> None:
        self._open(local.data, Address.parse(address).tunnel, (role,), dials=True)

    def _open(self, accept: str, connect: str, peers: tuple[str, ...], *, dials: bool) -> None:
        from psfleet.tls.route import Route

        first, *others = peers
        self._tunnels.open(Route(accept, connect, first, dials, tuple(others)))


@contextmanager
def plane_of(settings: Settings, role: str, identity: Identity | None) -> Iterator[DataPlane]:
    """Context manager for the data plane of a ps or plain worker, or of a client: of a standing fleet or a run's.

    Raises:
        BadJobError: As `data_plane`.
        LostPeerError: A tunnel does not start.
    """
    if identity is None or settings.fleet is None:
        with data_plane(settings, role, settings.index, identity) as plane:
            yield plane
        return
    if settings.address.is_loopback:
        yield OnLoopback(settings.address, settings.ps)
        return
    from psfleet.tls.tunnel import Tunnels

    with Tunnels(identity) as tunnels:
        yield FleetTunnels(settings, settings.fleet, role, tunnels)


def lasting_plane(settings: Settings, role: str, identity: Identity | None) -> DataPlane:
    """As `plane_of`, open until this process ends.

    A thread of its own opens it: the kernel ends tunnels with the thread that started them, and the caller's may end.
    """
    opened: Future[DataPlane] = Future()

    def keep() -> None:
        try:
            with plane_of(settings, role, identity) as plane:
                opened.set_result(plane)
                threading.Event().wait()
        except BaseException as error:
            # Any error: the caller waits for it.
            opened.set_exception(error)

    threading.Thread(target=keep, name="data-plane", daemon=True).start()
    return opened.result()
