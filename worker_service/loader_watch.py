"""Finds that a loader has ended or does not answer, while a worker reads from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.control.credentials import channel
from psfleet.service import channel_options
from psfleet.tls.data_plane import DataPlane

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

ANSWER_SECS = 5.0
"""Timeout for a loader to answer; one that has died refuses the connection at once."""


@dataclass(frozen=True)
class Loader:
    """A loader as a worker reaches it.

    Attributes:
        address: Of its control plane.
        dispatcher: Of its tf.data service; with TLS on loopback, where a tunnel leads to it.
        identity: Of the worker, under TLS.
    """

    index: int
    address: Address
    dispatcher: Address
    identity: Identity | None = None


class LoaderWatch:
    """A stream of one loader's health. It ends with its process, or 15 s after it is frozen or cut off."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.who = f"loader {loader.index} at {loader.address.data}"
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] = lambda: None
        self._answered, self._ended = threading.Event(), threading.Event()
        self._is_serving = self._is_closed = False
        self._channel = channel(loader.address.control, "loader", loader.identity, channel_options.ATTENDANCE)
        self._call: Any = health_pb2_grpc.HealthStub(self._channel).Watch(health_pb2.HealthCheckRequest())
        threading.Thread(target=self._follow, name=f"watch-loader-{loader.index}", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed = True
        self._call.cancel()
        self._channel.close()

    def has_begun(self, timeout_secs: float = ANSWER_SECS) -> bool:
        """Waits for the first answer; whether the loader serves."""
        self._answered.wait(timeout_secs)
        return self._is_serving

    def has_ended(self, timeout_secs: float) -> bool:
        """Whether the loader is lost, or is so within a time."""
        return self._ended.wait(timeout_secs)

    def on_end(self, function: Callable[[], None]) -> None:
        """Sets what is called, once, when the loader is lost; at once if it is."""
        with self._lock:
            self._on_end = function
            is_lost = self._ended.is_set()
        if is_lost:
            function()

    def _follow(self) -> None:
        try:
            for reply in self._call:
                self._is_serving = reply.status == health_pb2.HealthCheckResponse.SERVING
                self._answered.set()
                if not self._is_serving:
                    break
        except (grpc.RpcError, ValueError):
            # ValueError is gRPC's for a channel that was closed.
            pass
        with self._lock:
            self._is_serving = False
            self._ended.set()
            self._answered.set()
            # One that is set after this is called by `on_end`.
            on_end = self._on_end
        if not self._is_closed:
            on_end()


def reached(addresses: Sequence[Address], plane: DataPlane, identity: Identity | None) -> list[Loader]:
    """The loaders of a run, by index, as this worker reaches them once the plane has met them.

    Args:
        addresses: Of their control planes.
    """
    pairs = zip(addresses, plane.loaders, strict=True)
    return [Loader(index, address, dispatcher, identity) for index, (address, dispatcher) in enumerate(pairs)]
