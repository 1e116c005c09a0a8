"""The TensorFlow server of a client's process: one for all its connections."""

from __future__ import annotations

import threading
from collections.abc import Callable

from psfleet.addresses import Address
from psfleet.job.sections import Device
from psfleet.tf.server import boot
from psfleet.tls.data_plane import DataPlane

_lock = threading.Lock()
_booted: list[Address] = []


def own_server(open_plane: Callable[[], DataPlane], device: Device) -> Address:
    """The address of this process's server; starts it at the first call.

    Args:
        open_plane: Opens the data plane of this process.
        device: Threads and accelerators of the server.

    Raises:
        LostPeerError: The port is in use.
        BadJobError: With TLS, other machines could reach the port.
    """
    with _lock:
        if not _booted:
            plane = open_plane()
            boot(plane.own, device)
            plane.check()
            _booted.append(plane.own)
        return _booted[0]
