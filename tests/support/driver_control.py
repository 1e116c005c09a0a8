"""The control plane of a driver in this process, with a folder of files, and clients that call it as workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

import psfleet
from psfleet.addresses import Address
from psfleet.control import driver_control_pb2 as pb
from psfleet.control import driver_control_pb2_grpc, server
from psfleet.control.driver_client import DriverClient
from psfleet.control.driver_servicer import DriverServicer
from psfleet.control.worker_registry import WorkerRegistry
from psfleet.processes.ports import free_addresses
from psfleet.tls.identity import Identity

RUN = "driven"
NUM_WORKERS = 2
CALL_SECS = 10.0
OLD, NEW = "0" * 16, "1" * 16
"""Processes of a worker."""


class ServedDriver:
    """A driver: its workers may read and write the files of `folder` whose names begin with their index.

    Attributes:
        registry, servicer: Of the driver.
        stub: Calls it.
    """

    def __init__(self, folder: Path, address: Address) -> None:
        self.folder = folder
        self.registry = WorkerRegistry(NUM_WORKERS)

        def readable(name: str) -> Path | None:
            return folder / name if name[:1].isdecimal() else None

        def writable(index: int, name: str) -> Path | None:
            return folder / name if name.startswith(str(index)) else None

        self.servicer = DriverServicer(RUN, self.registry, readable, writable)
        self.address = address
        self.channel = grpc.insecure_channel(address.control)
        self.stub = driver_control_pb2_grpc.DriverControlStub(self.channel)

    def client(self, index: int = 0, run: str = RUN) -> DriverClient:
        """A client of a new process."""
        return DriverClient(self.address, run, index, CALL_SECS, None)

    def deliver(self, *messages: pb.FileMessage) -> None:
        """Gives the driver a stream of messages."""
        self.stub.Deliver(iter(messages), timeout=CALL_SECS)


def caller(process: str = OLD, **fields: Any) -> pb.DriverCall:
    """A process of worker 0."""
    return pb.DriverCall(**{"run": RUN, "version": psfleet.__version__, "index": 0, "process": process} | fields)


def head(name: str, **fields: Any) -> pb.FileMessage:
    """The beginning of a file."""
    return pb.FileMessage(caller=caller(**fields), name=name)


@contextmanager
def served_driver(folder: Path, identity: Identity | None = None) -> Iterator[ServedDriver]:
    """Context manager for a driver; with an identity, with mutual TLS."""
    (address,) = free_addresses(1)
    driver = ServedDriver(folder, address)

    def add(to: grpc.Server) -> None:
        driver_control_pb2_grpc.add_DriverControlServicer_to_server(driver.servicer, to)

    with driver.channel, server.serving(address, identity=identity, add=add):
        yield driver
