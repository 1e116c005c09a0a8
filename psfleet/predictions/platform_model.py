"""The trained model of a prediction in containers: of a fleet of the platform, of this machine, or in a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint
from psfleet.driver.trained_models import program_home, require_results
from psfleet.errors import UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.prediction_order import PredictionOrder
from psfleet.job.reading import is_study, is_yaml_file, read_job_file
from psfleet.launch.platform import Platform, chief_of
from psfleet.predictions.source import Source, find
from psfleet.service import settings
from psfleet.sweep.database import DATABASE
from psfleet.sweep.loaded_study import load_study


@dataclass(frozen=True)
class PlatformModel:
    """A trained model, and the containers that can load it.

    Attributes:
        name: Of the job or the study.
        job: Content of the job that describes the containers.
        home: The folder of the program; mounts are relative to it.
        workers: Of the job's or the study's fleet.
        folder: The folder of the model on this machine; empty: it is not there.
        fleet: The fleet whose results have the model; empty: none.
        url: Of the model in an object store; empty: it is in none.
        step, best: As of `source.find`, which the driver calls; the folder of one checkpoint needs neither.
        chosen: See `PredictionOrder`.
    """

    name: str
    job: Mapping[str, Any]
    home: Path
    workers: int
    folder: str = ""
    fleet: str = ""
    url: str = ""
    step: int | None = None
    best: bool = False
    chosen: str = ""


def fleet_of(name: str) -> str:
    """The name of the fleet that predicts with the model of a job or study."""
    return f"{name}-predict"


def find_model(platform: Platform, text: str, step: int | None, best: bool) -> PlatformModel:
    """The model that an argument of `psfleet predict --on` names.

    Args:
        text: A job or study file, for the results of its fleet on the platform, or the store of the job; a study whose
            fleet has none may be one of this machine. Or a run folder, a checkpoint, or the URL of a store.
        step, best: As of `source.find`.

    Raises:
        UsageError: There are no results, or they cannot be used in containers.
        NoCheckpointError: There is no checkpoint, or none is valid.
    """
    location = parse(text)
    if isinstance(location, Path) and is_yaml_file(location):
        content = read_job_file(location)
        if is_study(content):
            return _of_study(platform, location, step, best)
        return _of_fleet(platform, location, parse_job(content, text), step, best)
    return _of_run(platform, text, step, best)


def _of_fleet(platform: Platform, path: Path, job: Job, step: int | None, best: bool) -> PlatformModel:
    content, home, workers = job.model_dump(mode="json"), path.parent.resolve(), job.fleet.workers
    if job.checkpoint.store is not None:
        return PlatformModel(job.name, content, home, workers, url=job.checkpoint.store, step=step, best=best)
    require_results(platform, path, job)
    return PlatformModel(job.name, content, home, workers, fleet=job.name, step=step, best=best)


def _of_study(platform: Platform, path: Path, step: int | None, best: bool) -> PlatformModel:
    loaded = load_study(path)
    name, workers = loaded.study.name, loaded.study.fleet.workers
    if step is not None or best:
        raise UsageError(f"{path} is a study, whose best trial is used, expected neither --step nor --best")
    content = loaded.first_content()
    if platform.has_results(name):
        return PlatformModel(name, content, loaded.folder, workers, fleet=name)
    folder = Path("studies", name).absolute()
    if not (folder / DATABASE).is_file():
        raise UsageError(
            f"{path}: study {name} has results neither on this platform nor in {folder}, expected psfleet sweep before"
        )
    return PlatformModel(name, content, loaded.folder, workers, folder=str(folder))


def _of_run(platform: Platform, text: str, step: int | None, best: bool) -> PlatformModel:
    """The checkpoint that is found now, or that of the same command before; what a run writes later is not used."""
    found = find(text, step, best)
    if found.checkpoint is None:
        raise UsageError(f"{text} is the folder of a study, expected its study file, whose job has the program")
    chosen = ""
    if found.checkpoint.folder != parse(text):
        chosen = f"step {step}" if step is not None else "best" if best else "newest"
        found = _of_command_before(platform, found.job.name, found.checkpoint, chosen) or found
    assert found.checkpoint is not None, "of a run"
    home = program_home(text, found.job, found.folder)
    content, folder = found.job.model_dump(mode="json"), found.checkpoint.folder
    model = PlatformModel(found.job.name, content, home, found.job.fleet.workers, chosen=chosen)
    if isinstance(folder, Path):
        return replace(model, folder=str(folder.absolute()))
    return replace(model, url=str(folder))


def _of_command_before(platform: Platform, name: str, checkpoint: Checkpoint, chosen: str) -> Source | None:
    """The checkpoint of the same run with which a fleet predicts that the same choice has started.

    None: there is no such fleet, or its prediction is over.

    Args:
        name: Of the job.
        checkpoint: That is found now.
        chosen: See `PlatformModel`.
    """
    activity = platform.activity(fleet_of(name))
    if activity is None or (text := activity.driver_variables.get(settings.PREDICTION)) is None:
        return None
    driver = chief_of(platform.members(fleet_of(name)))
    if driver is not None and driver.is_over and not driver.awaits_restart:
        return None
    order = PredictionOrder.from_json(text, f"fleet {fleet_of(name)}")
    folder, now = parse(activity.model_folder or order.source), checkpoint.folder
    now = now.absolute() if isinstance(now, Path) else now
    if order.chosen != chosen or folder.parent != now.parent or not (folder / MANIFEST).is_file():
        return None
    return find(str(folder), None, False)
