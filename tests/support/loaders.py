"""Loaders in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psfleet.addresses import Address
from psfleet.control.server import serving
from psfleet.tls.loader_plane import LoaderPlane
from worker_service.loader.definitions import Definitions
from worker_service.loader.service import LoaderServicer, data_service
from worker_service.loader_watch import Loader

RUN = "loaded-1"


@contextmanager
def running(
    address: Address, keeps_jobs: bool = False, definitions: Definitions | None = None
) -> Iterator[LoaderServicer]:
    """A loader in this process."""
    plane, servicer = LoaderPlane(address, Address(address.host, 0)), LoaderServicer(RUN)
    with definitions or Definitions() as kept:
        servers = data_service(plane, keeps_jobs, kept.folder)
        with serving(address, servicer, watchers=servicer.watchers):
            yield servicer
        del servers


def reached(addresses: list[Address]) -> list[Loader]:
    """Loaders without tunnels."""
    return [Loader(index, address, address) for index, address in enumerate(addresses)]
