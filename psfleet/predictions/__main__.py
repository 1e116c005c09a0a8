"""`python -m psfleet.predictions`: the driver of a prediction in a container; its workers are others, which join it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from psfleet.control.credentials import read_identity
from psfleet.driver.containers import ContainerWorker, container_workers
from psfleet.errors import BadJobError, PermanentError, UsageError
from psfleet.job.prediction_files import REQUEST, is_name_of_share
from psfleet.job.prediction_order import PredictionOrder
from psfleet.predictions import files, folders
from psfleet.predictions.driver import drive, require_callable, summary
from psfleet.predictions.model_files import on_disk
from psfleet.predictions.source import Source, find
from psfleet.service.process import Service, Stop, run_service
from psfleet.service.settings import Settings

logger = logging.getLogger("psfleet.predictions")


def serve(settings: Settings, stop: Stop) -> int:
    """Drives the prediction to its end; returns the exit code.

    Raises:
        BadJobError: This process has nothing to predict.
        StoppedError: A signal stopped it; the next process continues.
        PsfleetError: As of `find` and `drive`.
    """
    order = settings.prediction
    if order is None:
        raise BadJobError("PSFLEET_PREDICTION is missing, expected what to predict as JSON")
    try:
        source = _checked(order)
    except PermanentError:
        # The workers end with the same exit code.
        with _workers(settings, {}, settings.out, order.workers):
            raise
    out, began = settings.out / order.out, time.monotonic()

    def check() -> None:
        if stop.event.is_set():
            raise stop.error()

    with folders.kept(out, source.request_of_containers(order.data, order.workers)) as (folder, request):
        readable = {REQUEST: folder / REQUEST, **on_disk(source.files(), folder, check)}
        recruited = _workers(settings, readable, folder, order.workers)
        shares = drive(request, source.job.deadlines, folder, out, recruited, _log_loss, check)
    logger.info("%s", summary(shares, source, order.workers, time.monotonic() - began), extra={"event": "done"})
    return 0


def _checked(order: PredictionOrder) -> Source:
    """The model of an order.

    Raises:
        PermanentError: It can never be predicted here.
    """
    if Path(order.out).name != order.out:
        raise UsageError(f"--out {order.out}: expected the name of a file, without a folder")
    require_callable(order.data)
    files.require_format(Path(order.out), "container.worker_image with it")
    return find(order.source, order.step, order.best)


def _workers(
    settings: Settings, readable: Mapping[str, Path], folder: Path, number: int
) -> AbstractContextManager[Sequence[ContainerWorker]]:
    """Containers that read the request and the model, and write their shares."""

    def writable(index: int, name: str) -> Path | None:
        return folder / name if is_name_of_share(index, name) else None

    identity = read_identity(settings.tls, "worker")
    return container_workers(settings.address, settings.run, number, identity, readable.get, writable)


def _log_loss(text: str) -> None:
    logger.warning("%s", text, extra={"event": "worker_lost"})


def _load() -> Service:
    return serve


if __name__ == "__main__":
    run_service("prediction", _load)
