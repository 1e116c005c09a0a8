"""Where TensorFlow listens and finds its peers: where the fleet says they are, or with TLS on loopback, by tunnels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from psfleet.addresses import Address, local_address
from psfleet.errors import BadJobError
from psfleet.service.settings import Settings
from psfleet.tls.listeners import is_on_loopback_alone, listeners

if TYPE_CHECKING:
    # Not loaded by a fleet without TLS.
    from psfleet.tls.identity import Identity
    from psfleet.tls.tunnel import Tunnels


class DataPlane(Protocol):
    """The data plane as one process sees it.

    Attributes:
        own: Where this process's TensorFlow listens.
        ps: Under which addresses it reaches each ps.
    """

    own: Address
    ps: tuple[Address, ...]

    def check(self) -> None:
        """Called once TensorFlow listens.

        Raises:
            BadJobError: Strangers could reach it, though TLS was asked for.
        """

    def meet(self, worker: int, address: str) -> None:
        """Makes a worker reachable for this ps's TensorFlow; called with each sign of life.

        Raises:
            BadJobError: The address is none.
            LostPeerError: The way there cannot be opened now.
        """


@dataclass
class Direct:
    """Everybody reaches everybody where the fleet says they are."""

    own: Address
    ps: tuple[Address, ...]

    def check(self) -> None:
        """Nothing was promised."""

    def meet(self, worker: int, address: str) -> None:
        """Its session brings the address."""


class Tunnelled:
    """TensorFlow knows only loopback: each task has a port of its own there, in all containers the same.

    In the task's own container TensorFlow itself listens on it, in others a tunnel that leads to that task.
    """

    def __init__(self, settings: Settings, role: str, index: int, tunnels: Tunnels) -> None:
        self.own = local_address(role, index)
        self.ps = tuple(local_address("ps", shard) for shard in range(len(settings.ps)))
        self._tunnels = tunnels
        everywhere = "::" if Path("/proc/self/net/if_inet6").exists() else "0.0.0.0"
        entrance = f"{everywhere}:{Address(everywhere, settings.address.port).tunnel.rpartition(':')[2]}"
        self._open(entrance, self.own.data, "worker" if role == "ps" else "ps", dials=False)
        if role == "worker":
            for local, address in zip(self.ps, settings.ps, strict=True):
                self._open(local.data, address.tunnel, "ps", dials=True)

    def check(self) -> None:
        """See DataPlane."""
        if not is_on_loopback_alone(self.own.port):
            found = ", ".join(sorted(listeners(self.own.port))) or "nothing"
            raise BadJobError(
                f"tls: true, but TensorFlow's port {self.own.port} listens on {found}, expected loopback alone"
            )

    def meet(self, worker: int, address: str) -> None:
        """See DataPlane."""
        self._open(local_address("worker", worker).data, Address.parse(address).tunnel, "worker", dials=True)

    def _open(self, accept: str, connect: str, peer: str, *, dials: bool) -> None:
        from psfleet.tls.tunnel import Route

        self._tunnels.open(Route(accept, connect, peer, dials))


@contextmanager
def data_plane(settings: Settings, role: str, index: int, identity: Identity | None) -> Iterator[DataPlane]:
    """The data plane of a process until the block is left; with an identity, through tunnels.

    Raises:
        BadJobError: stunnel is missing, the index has no port, or a ps with TLS is to serve any run: tunnels lead to
            the workers of one.
        LostPeerError: A tunnel does not start.
    """
    if identity is None:
        yield Direct(settings.address, settings.ps)
        return
    if not settings.run:
        raise BadJobError("tls: a ps with PSFLEET_TLS serves one run, expected PSFLEET_RUN")
    from psfleet.tls.tunnel import Tunnels

    with Tunnels(identity) as tunnels:
        yield Tunnelled(settings, role, index, tunnels)
