"""Where the two ports of a loader's tf.data service listen, and the tunnels that lead to them with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psfleet.addresses import Address, loader_ports
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import ANY_HOST

if TYPE_CHECKING:
    # Not loaded without TLS.
    from psfleet.tls.identity import Identity


@dataclass(frozen=True)
class LoaderPlane:
    """Where the servers of one loader listen: on loopback only if that is their host, else on all interfaces.

    Attributes:
        dispatcher: Of the dispatcher.
        batches: Of the server from which workers read batches, as the dispatcher names it to them; port 0: the system
            chooses one.
        requires_closed: Whether a port that other machines could reach is an error.
    """

    dispatcher: Address
    batches: Address
    requires_closed: bool = False


@contextmanager
def loader_plane(settings: Settings, identity: Identity | None) -> Iterator[LoaderPlane]:
    """Context manager for the ports of a loader. With an identity only tunnels lead to them, which admit workers.

    Raises:
        BadJobError: stunnel is missing, or the index has no ports.
        LostPeerError: A tunnel does not start.
    """
    address = settings.address
    if address.loopback_host:
        host = address.loopback_host
        yield LoaderPlane(Address(host, address.port), Address(host, 0))
        return
    if identity is None:
        yield LoaderPlane(address, address.batches)
        return
    from psfleet.tls.route import Route
    from psfleet.tls.tunnel import Tunnels

    dispatcher, batches = loader_ports(settings.index)
    with Tunnels(identity) as tunnels:
        for open_port, local in ((address.port, dispatcher), (address.batches.port, batches)):
            tunnels.open(Route(Address(ANY_HOST, open_port).tunnel, local.data, "worker", dials=False))
        yield LoaderPlane(dispatcher, batches, requires_closed=True)
