"""A prediction in containers: its fleet is started or attached to, and the file is copied when it is complete."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from psfleet.driver.on_platform import Driven, containers_job, drive_on
from psfleet.errors import DONE, PERMANENT_CODES, LostPeerError
from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.job.prediction_order import PredictionOrder
from psfleet.launch.platform import Member, Platform, Request
from psfleet.launch.transfer import extracted
from psfleet.manifests import container
from psfleet.predictions import folders
from psfleet.predictions.platform_model import PlatformModel, fleet_of
from psfleet.service import settings

KIND = "prediction"


def fleet_name(model: PlatformModel) -> str:
    """The name of the fleet that predicts with a model."""
    return fleet_of(model.name)


def predict_on(
    platform: Platform,
    model: PlatformModel,
    data: str,
    out: Path,
    workers: int,
    show: Callable[[str], None] = lambda text: None,
    on_start: Callable[[], None] = lambda: None,
) -> str:
    """Predicts a data set in containers, or attaches to those that do; nothing of them is left after the end.

    After a temporary error the complete shares stay on the platform, and the next call continues. An exception leaves
    the fleet as it is.

    Args:
        data: `module:callable` of the data set.
        out: As for `psfleet.predictions.driver.predict`.
        show: Called with each line for the user.
        on_start: Called once the fleet is started, or found.

    Returns:
        What was predicted, in one line.

    Raises:
        UsageError: The file cannot be written, or as of `start`.
        TakenDownError: The fleet was removed meanwhile.
        LostPeerError: The copy broke off.
        PsfleetError: The prediction has failed; the exit code is the driver's.
    """
    order = _order(model, data, out, workers)
    name = fleet_name(model)
    job = containers_job(model.job, name, workers, model.url)
    request = Request(job, model.home / "job.yaml", activity=_activity(model, order))
    summaries: list[str] = []

    def listen(entry: Mapping[str, Any]) -> None:
        if entry.get("event") == "done":
            summaries.append(str(entry["message"]))

    def copy(members: Sequence[Member], driven: Driven) -> bool:
        if driven.exit_code == DONE:
            _copy(platform, job, order.out, out)
        return driven.exit_code in {DONE, *PERMANENT_CODES}

    drive_on(platform, request, show, on_start, copy, listen).require_done(f"prediction {name}")
    return f"{out}: {summaries[-1] if summaries else 'complete'}"


def _order(model: PlatformModel, data: str, out: Path, workers: int) -> PredictionOrder:
    # The name does not depend on that of the copy, so that another command can attach to the fleet.
    return PredictionOrder(
        source=model.url or container.MODEL,
        step=model.step,
        best=model.best,
        data=data,
        out=f"predictions{out.suffix}",
        workers=workers,
        chosen=model.chosen,
    )


def _activity(model: PlatformModel, order: PredictionOrder) -> Activity:
    return Activity(
        kind=KIND,
        driver="psfleet.predictions",
        worker="worker_service.predictions",
        driver_variables={settings.PREDICTION: order.model_dump_json()},
        worker_variables={},
        model_folder=model.folder,
        model_fleet=model.fleet,
    )


def _copy(platform: Platform, job: Job, name: str, out: Path) -> None:
    """Copies the file of the platform; it appears when it is complete.

    Raises:
        LostPeerError: The copy broke off, or there is no such file any more.
    """
    with folders.writable(out), tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        if Path(name) not in [*extracted(platform, job, [name], Path(folder))]:
            raise LostPeerError(f"fleet {job.name} has no file {name}, expected the one that its driver has written")
        (Path(folder) / name).replace(out)
