"""A study in containers: its fleet is started or attached to, followed, copied to a local folder, and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psfleet.errors import BUG, DONE, LOST_PEERS, SIGNAL_BASE, STOPPED, PsfleetError
from psfleet.files import only_user
from psfleet.job.activity import Activity
from psfleet.job.job import Job, parse_job
from psfleet.launch.followers import following
from psfleet.launch.platform import Member, Platform, Request, chief_of
from psfleet.launch.up import remove, start
from psfleet.launch.watcher import FleetWatcher, TakenDownError
from psfleet.service import settings
from psfleet.service.logs import is_failure
from psfleet.sweep import results
from psfleet.sweep.copied import copied_study, copy_study, require_copy, save_logs
from psfleet.sweep.database import optuna_module
from psfleet.sweep.driver import Progress, clear
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import num_trials
from psfleet.sweep.workers import access_to

KIND = "study"
OF_CONTAINERS = ("program", "options", "optimizer", "train", "device", "deadlines", "container", "kubernetes", "tls")
"""Sections of a study's job that describe its containers, or without which there is no job."""
SHOWN = frozenset({"trial", "worker_lost", "started", "waits", "member_failed", "gone", "traceback"})
"""Events of the driver's log and of the fleet whose messages are shown."""


def fleet_job(loaded: LoadedStudy) -> Job:
    """The job that describes the containers of a study: one for the driver, which can do without any of the workers.

    Raises:
        BadJobError: It is not valid.
    """
    first = {name: dimension.samples[0] for name, dimension in loaded.study.space.items()}
    content = {key: value for key, value in loaded.content_of(first).items() if key in OF_CONTAINERS}
    number = min(loaded.study.fleet.workers, num_trials(loaded.study))
    return parse_job({**content, "name": loaded.study.name, "fleet": {"workers": 1, "spares": number}})


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
        PsfleetError: The study has failed; the exit code is the driver's.
    """
    optuna_module()
    name, activity = loaded.study.name, study_activity(loaded)
    request = Request(fleet_job(loaded), loaded.folder / "job.yaml", fresh, activity=activity)
    if not fresh:
        require_copy(folder, on, platform.has_results(name))
    with following(platform, name) as follower:
        start(platform, request)
        on_start()
        if fresh:
            with only_user(folder, "psfleet sweep"):
                clear(folder)
        seen = _Seen(show)
        try:
            FleetWatcher(platform, request.job, seen).run()
        except TakenDownError:
            raise TakenDownError(name, KIND) from None
        members = platform.members(name)
        chief = chief_of(members)
        if chief is None:
            raise TakenDownError(name, KIND)
        save_logs(platform, members, folder)
        copy_study(platform, request.job, folder, on)
        if follower.is_last():
            remove(platform, name)
        else:
            show(f"another command follows fleet {name}, and removes it at its own end")
    return _progress(loaded, folder, chief, seen)


class _Seen:
    """Receives the entries of the driver's log; shows some, and remembers how the driver failed."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.failure: Mapping[str, Any] = {}

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Takes an entry."""
        if is_failure(entry):
            self.failure = entry
        if entry.get("event") in SHOWN and "message" in entry:
            self._show(str(entry["message"]))


def _progress(loaded: LoadedStudy, folder: Path, driver: Member, seen: _Seen) -> Progress:
    """What the study has reached; raises the driver's error."""
    code = driver.exit_code if driver.exit_code is not None else BUG
    if code != DONE:
        cause = seen.failure.get("message") if seen.failure.get("exit_code") == code else None
        error = PsfleetError(f"study {loaded.study.name}: {cause or f'{driver.name}: {driver.cause}'}")
        # A killed driver is a lost peer.
        error.exit_code = LOST_PEERS if code > SIGNAL_BASE and code not in STOPPED else code
        raise error
    finished = copied_study(loaded, folder)
    return Progress(num_trials(loaded.study), finished, results.best_first(loaded.study, finished))
