"""A study in containers: its fleet is started or attached to, followed, copied to a local folder, and removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from psfleet.driver.on_platform import Driven, containers_job, drive_on
from psfleet.errors import LostPeerError
from psfleet.files import only_user
from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.launch.platform import Member, Platform, Request
from psfleet.service import settings
from psfleet.sweep import results
from psfleet.sweep.copied import copied_study, copy_study, require_copy, save_logs
from psfleet.sweep.database import optuna_module
from psfleet.sweep.driver import Progress, clear
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import num_trials
from psfleet.sweep.workers import access_to

KIND = "study"


def fleet_job(loaded: LoadedStudy) -> Job:
    """The job that describes the containers of a study: one for the driver, which can do without any of the workers.

    Raises:
        BadJobError: It is not valid.
    """
    number = min(loaded.study.fleet.workers, num_trials(loaded.study))
    return containers_job(loaded.first_content(), loaded.study.name, number)


def study_activity(loaded: LoadedStudy) -> Activity:
    """What the containers of a study do."""
    return Activity(
        kind=KIND,
        driver="psfleet.sweep",
        worker="worker_service.trial",
        driver_variables={settings.STUDY: loaded.to_json()},
        worker_variables={settings.TRIALS: access_to(loaded.study).model_dump_json()},
    )


def sweep_on(
    platform: Platform,
    loaded: LoadedStudy,
    folder: Path,
    on: str,
    fresh: bool = False,
    show: Callable[[str], None] = lambda text: None,
    on_start: Callable[[], None] = lambda: None,
) -> Progress:
    """Runs a study in containers, or attaches to it if it runs; its results are copied to a folder of this machine.

    The study continues from the results on the platform, which stay there. An exception leaves the fleet as it is.

    Args:
        on: Name of the platform.
        fresh: Whether the results of an earlier study are deleted first, in `folder` and on the platform.
        show: Called with each line for the user.
        on_start: Called once the fleet is started, or found.

    Raises:
        UsageError: A package is missing, the folder has results that the copy would replace, or as of `start`.
        TakenDownError: The fleet was removed meanwhile.
        LostPeerError: The results were deleted meanwhile.
        PsfleetError: The study has failed; the exit code is the driver's.
    """
    optuna_module()
    name, activity = loaded.study.name, study_activity(loaded)
    request = Request(fleet_job(loaded), loaded.folder / "job.yaml", fresh, activity=activity)
    if not fresh:
        require_copy(folder, on, platform.has_results(name))

    def started() -> None:
        on_start()
        if fresh:
            with only_user(folder, "psfleet sweep"):
                clear(folder)

    def copy(members: Sequence[Member], driven: Driven) -> bool:
        save_logs(platform, members, folder)
        copy_study(platform, request.job, folder, on)
        return False

    drive_on(platform, request, show, started, copy).require_done(f"study {name}")
    finished = copied_study(loaded, folder)
    if not finished:
        raise LostPeerError(f"study {name} is done, but {on} has no results of it: they were deleted meanwhile")
    return Progress(num_trials(loaded.study), finished, results.best_first(loaded.study, finished))
