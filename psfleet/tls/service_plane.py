"""The addresses that TensorFlow of a front and of its members uses, and the tunnels between them with TLS.

The front connects to members, and members to the front: TensorFlow fetches tensors from where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psfleet.addresses import Address, local_address, run_address
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import ANY_HOST, check_loopback

if TYPE_CHECKING:
    # Not loaded without TLS.
    from psfleet.tls.identity import Identity

ROLE = "worker"
"""In the certificates of all processes of a service."""


@dataclass(frozen=True)
class ServicePlane:
    """Addresses of TensorFlow's servers, as this process connects to them.

    Attributes:
        own: On which that of this process listens.
        front: That of the front.
        requires_closed: Whether a port that other machines could reach is an error.
    """

    own: Address
    front: Address
    requires_closed: bool = False

    def check(self) -> None:
        """Verifies the port of TensorFlow once it listens.

        Raises:
            BadJobError: With TLS, other machines could reach it.
        """
        if self.requires_closed:
            check_loopback(self.own.port)


@contextmanager
def front_plane(settings: Settings, members: Sequence[str], identity: Identity | None) -> Iterator[ServicePlane]:
    """Context manager for the plane of the front.

    Args:
        members: With TLS, `host:port` of each member, by index.
        identity: None: there is no TLS.

    Raises:
        BadJobError: stunnel is missing.
        LostPeerError: A tunnel does not start.
    """
    if identity is None:
        yield ServicePlane(settings.address, settings.address)
        return
    local = local_address("ps", 0)
    peers = [(run_address(settings.run, index), Address.parse(member)) for index, member in enumerate(members)]
    with _tunnelled(settings, local, peers, identity):
        yield ServicePlane(local, local, requires_closed=True)


@contextmanager
def member_plane(settings: Settings, front: Address, identity: Identity | None) -> Iterator[ServicePlane]:
    """Context manager for the plane of a member; as `front_plane`.

    Args:
        front: The front's address in the network.
    """
    if identity is None:
        yield ServicePlane(settings.address, front)
        return
    local, own = local_address("ps", 0), run_address(settings.run, settings.index)
    with _tunnelled(settings, own, [(local, front)], identity):
        yield ServicePlane(own, local, requires_closed=True)


@contextmanager
def _tunnelled(
    settings: Settings, own: Address, peers: Sequence[tuple[Address, Address]], identity: Identity
) -> Iterator[None]:
    """Context manager for a tunnel to this process, and one to each peer, from a local address."""
    from psfleet.tls.route import Route
    from psfleet.tls.tunnel import Tunnels

    with Tunnels(identity) as tunnels:
        tunnels.open(Route(Address(ANY_HOST, settings.address.port).tunnel, own.data, ROLE, dials=False))
        for local, peer in peers:
            tunnels.open(Route(local.data, peer.tunnel, ROLE, dials=True))
        yield
