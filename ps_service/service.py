"""A parameter server from its start to the end of its run."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from ps_service.exchanges import accepting_exchanges
from ps_service.fleet_view import LINGER_SECS
from ps_service.metrics import PsMetrics
from ps_service.run_state import Run
from ps_service.servicer import ControlServicer
from psfleet.control.credentials import read_identity
from psfleet.control.server import serving
from psfleet.errors import DeadlineError
from psfleet.polling import wait_until
from psfleet.service.metrics_server import exposing
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from psfleet.tf.client_sessions import for_clients
from psfleet.tf.gpus import hide_gpus
from psfleet.tf.server import boot
from psfleet.tls.data_plane import DataPlane
from psfleet.tls.fleet_plane import plane_of

if TYPE_CHECKING:
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.ps")

SAVE_SECS = 5.0
"""How long a signal leaves to a checkpoint that needs this ps; Docker kills a container 10 s after its SIGTERM."""


def serve(settings: Settings, stop: Stop) -> int:
    """Serves until the run is over or a signal comes; the exit code.

    A checkpoint part that is being written, or held for the chief, is saved before, if that takes `SAVE_SECS` at most.

    Raises:
        BadJobError: With TLS, its certificate or stunnel is missing.
        LostPeerError: A port is taken.
        DeadlineError: No worker sent a heartbeat for the job's `deadlines.stall_secs`.
        StoppedError: A signal came first.
    """
    identity = read_identity(settings.tls, "ps")
    with plane_of(settings, "ps", identity) as plane:
        return _serve(settings, stop, plane, identity)


def _serve(settings: Settings, stop: Stop, plane: DataPlane, identity: Identity | None) -> int:
    hide_gpus()
    target = boot(plane.own, settings.device)
    plane.check()
    clients = for_clients(settings, target, plane)
    metrics = PsMetrics(max(settings.index, 0))
    with accepting_exchanges(settings.address, identity) as exchanges:
        servicer = ControlServicer(target, settings.run, settings.cause, plane, exchanges)
        with (
            serving(settings.address, servicer, identity, stop.event, stop.probes.note_answer, clients),
            exposing(settings, lambda: metrics.read(servicer.runs())),
        ):
            logger.info("ps is ready at %s", settings.address.data)
            code = attend(servicer, settings, stop.event)
    if code is None:
        raise stop.error()
    return code


def attend(servicer: ControlServicer, settings: Settings, leaving: threading.Event) -> int | None:
    """Attends to the runs of a ps until the one that it serves is over; the run's exit code.

    Args:
        leaving: Set when this process must end.

    Returns:
        None: This process must end before its run. A checkpoint part that needs it is saved by then, see `serve`.

    Raises:
        DeadlineError: No worker sent a heartbeat for the job's `deadlines.stall_secs`; not with `fleet.colocate`.
    """
    while not servicer.finished.is_set():
        if leaving.wait(0.1) and not _is_finished(servicer):
            return None
        _check_runs(servicer, settings)
    # Only a ps that serves a single run finishes.
    return _wait_for_workers(servicer.runs()[0])


def _is_finished(servicer: ControlServicer) -> bool:
    """Whether the run of a ps that got a signal ends well; waits for the checkpoint that needs this process."""

    def is_saved() -> bool:
        return servicer.finished.is_set() or not any(run.is_saving() for run in servicer.runs())

    try:
        wait_until(is_saved, SAVE_SECS, "the checkpoint part of this ps to be saved")
    except DeadlineError as error:
        logger.warning("%s", error)
    return servicer.finished.is_set()


def _check_runs(servicer: ControlServicer, settings: Settings) -> None:
    """Drops what is over, excludes absent workers, logs a slow step, and raises if no worker sends heartbeats.

    A worker in the same process need not send any: its own deadlines are longer while it starts.
    """
    servicer.drop_finished()
    for run in servicer.runs():
        run.end_streams_without_chief()
        run.exclude_absent()
    if settings.job is None:
        return
    deadlines = settings.job.deadlines
    for run in servicer.runs():
        if not settings.job.fleet.colocate and time.monotonic() - run.last_heartbeat > deadlines.stall_secs:
            raise DeadlineError("a heartbeat of any worker", deadlines.stall_secs)
        run.log_slow_step(deadlines.slow_secs * settings.job.update.round_steps)


def _wait_for_workers(run: Run) -> int:
    """Waits until every worker has received the outcome; returns the run's exit code."""
    try:
        wait_until(run.all_workers_notified, LINGER_SECS, "every worker to receive the outcome")
    except DeadlineError as error:
        logger.info("%s", error)
    outcome = run.outcome
    assert outcome is not None
    return outcome.exit_code
