"""A worker without a program: it lends its devices to the clients of a standing fleet until it is stopped."""

from __future__ import annotations

import logging
from typing import NoReturn

from psfleet.control.credentials import read_identity
from psfleet.control.server import serving
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.client_sessions import for_clients
from psfleet.tf.gpus import show_gpus
from psfleet.tf.server import boot
from psfleet.tls.fleet_plane import plane_of

logger = logging.getLogger("psfleet.worker")


def lend(settings: Settings, stop: Stop) -> NoReturn:
    """Serves TensorFlow and the control plane until a signal comes.

    Raises:
        BadJobError: With TLS, its certificate or stunnel is missing.
        LostPeerError: A port is taken.
        StoppedError: A signal came.
    """
    identity = read_identity(settings.tls, "worker")
    with plane_of(settings, "worker", identity) as plane:
        show_gpus(settings.device, settings.index)
        num_cpus = None if settings.device is None else settings.device.virtual_cpus
        target = boot(plane.own, settings.device, num_cpus)
        plane.check()
        clients = for_clients(settings, target, plane)
        with serving(settings.address, None, identity, stop.event, stop.probes.note_answer, clients):
            logger.info("worker lends its devices at %s", settings.address.data)
            stop.event.wait()
            raise stop.error()
