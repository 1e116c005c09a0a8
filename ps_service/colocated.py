"""The ps in a worker's process with `fleet.colocate`: both use one TensorFlow server and one control port."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ps_service.exchanges import Exchanges, accepting_exchanges
from ps_service.fleet_view import LINGER_SECS
from ps_service.metrics import PsMetrics
from ps_service.service import SAVE_SECS, attend
from ps_service.servicer import ControlServicer
from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.sections import Device
from psfleet.service.metrics import Readings
from psfleet.service.process import Stop, log_failure
from psfleet.service.settings import INDEX, Settings
from psfleet.tf.gpus import show_gpus
from psfleet.tf.server import boot, num_op_threads, session_config
from psfleet.tls.data_plane import DataPlane, data_plane

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.ps")

END_SECS = LINGER_SECS + SAVE_SECS + 1.0
"""For the thread of the ps to end, which has deadlines of its own."""


class ColocatedPs:
    """A ps on TensorFlow's server of this process, which it starts.

    Args of the constructor:
        settings: Of this process, whose index is that of the ps, too.
        plane: Of this process.
        exchanges: On connections of other workers.

    Attributes:
        servicer: Its control plane.
        plane: Of this process.
    """

    def __init__(self, settings: Settings, job: Job, plane: DataPlane, exchanges: Exchanges, stop: Stop) -> None:
        self.plane = plane
        self._settings, self._stop = settings, stop
        self._leaving = threading.Event()
        show_gpus(job.device, settings.index)
        target = boot(plane.own, device_of_both(job.device), job.device.virtual_cpus, reacts_while_computing=True)
        plane.check()
        self.servicer = ControlServicer(target, settings.run, settings.cause, plane, exchanges)
        self._metrics = PsMetrics(settings.index)
        self._thread = threading.Thread(target=self._attend, name="ps", daemon=True)

    def readings(self) -> Iterator[Readings]:
        """Its metrics; from any thread."""
        return self._metrics.read(self.servicer.runs())

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Context manager in which the ps serves its run. The worker ends in it.

        At the end it waits until all workers know how the run has ended; if this process must end before, only until a
        checkpoint part is saved that needs it.
        """
        self._thread.start()
        try:
            yield
        finally:
            if self._stop.event.is_set():
                self._leaving.set()
            is_over = any(run.outcome is not None for run in self.servicer.runs())
            if is_over or self._leaving.is_set():
                self._thread.join(END_SECS)

    def _attend(self) -> None:
        """Ends this process if the ps fails: the worker would wait for it."""
        try:
            attend(self.servicer, self._settings, self._leaving)
        except Exception as error:
            code, _ = log_failure(logger, error)
            self._stop.end_process(code)


def device_of_both(device: Device) -> Device:
    """The device with two threads for operations at least: one of them waits for other ps, which wait for this one."""
    has_one = num_op_threads(session_config(device)) == 1
    return device.model_copy(update={"inter_op_threads": None}) if has_one else device


@contextmanager
def colocated_ps(settings: Settings, job: Job, identity: Identity | None, stop: Stop) -> Iterator[ColocatedPs]:
    """Context manager for the ps with the index of this worker, which does not serve yet.

    Raises:
        BadJobError: The worker has no index, or the data plane cannot be set up.
        LostPeerError: A port is taken.
    """
    if settings.index not in range(len(settings.ps)):
        raise BadJobError(
            f"{INDEX} is {settings.index}, expected 0 to {len(settings.ps) - 1} with fleet.colocate: it is that of a ps"
        )
    with (
        data_plane(settings, "worker", settings.index, identity) as plane,
        accepting_exchanges(settings.address, identity) as exchanges,
    ):
        yield ColocatedPs(settings, job, plane, exchanges, stop)
