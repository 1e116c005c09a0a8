"""Whose models a service in containers has: of runs of this machine or of the platform, or of the trials of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.driver.trained_models import program_home, require_results
from psfleet.errors import UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.reading import is_study, is_yaml_file, read_job_file
from psfleet.job.service_access import MemberSource
from psfleet.job.service_plan import PlannedModel
from psfleet.launch.platform import Platform, chief_of
from psfleet.launch.transfer import extracted
from psfleet.manifests import container
from psfleet.serving.sources import (
    KeptTrial,
    name_of_all,
    ranked_trials,
    require_each_once,
    require_weights,
    study_folder,
    trials_with_weights,
)
from psfleet.sweep.copied import JOURNAL
from psfleet.sweep.database import DATABASE
from psfleet.sweep.loaded_study import LoadedStudy, load_study
from psfleet.sweep.on_platform import fleet_job


@dataclass(frozen=True)
class PlatformSources:
    """The models of a service in containers.

    Attributes:
        name: Of the job or the study: that of the ensemble.
        job: Content of the job that describes the containers.
        models: At least one.
    """

    name: str
    job: Mapping[str, Any]
    models: tuple[PlannedModel, ...]


def find_models(
    platform: Platform,
    texts: Sequence[str],
    top: int | None,
    step: int | None,
    best: bool,
    name: str | None,
    reads_stores: bool = False,
) -> PlatformSources:
    """The models that the arguments of `psfleet serve --on` name.

    Args:
        texts: The file of a study, whose results are on this machine or else on the platform; or job files, for the
            results of their fleets on the platform, and run folders and checkpoints of this machine.
        top: Of a study: the number of its best trials; None: one.
        step, best: Of runs: as of `sources.of_runs`.
        name: Of the model; None: that of the jobs or of the study.
        reads_stores: Whether the members can read checkpoints in an object store.

    Raises:
        UsageError: There is no such run, checkpoint or study, or containers cannot have it.
        NoCheckpointError: A run has no valid checkpoint.
    """
    if len(texts) == 1 and _is_study(texts[0]):
        if step is not None or best:
            raise UsageError(f"{texts[0]} is a study, expected neither --step nor --best")
        return _of_study(platform, texts[0], top or 1, name)
    _require_no_study_folder(texts)
    if top is not None:
        raise UsageError(f"--top {top}: {texts[0]} is no study, expected the file of one, or no --top")
    require_each_once(texts)
    found = {text: _of_run(platform, text, step, best, reads_stores) for text in texts}
    jobs = {text: job for text, (job, _) in found.items()}
    first = jobs[texts[0]]
    for text, job in jobs.items():
        if (job.container, job.tls) != (first.container, first.tls):
            raise UsageError(f"the jobs of {texts[0]} and {text} differ in `container` or `tls`, expected the same")
    models = tuple(model for _, model in found.values())
    return PlatformSources(
        name_of_all([job.name for job in jobs.values()], name), first.model_dump(mode="json"), models
    )


def _is_study(text: str) -> bool:
    path = parse(text)
    return isinstance(path, Path) and is_yaml_file(path) and is_study(read_job_file(path))


def _require_no_study_folder(texts: Sequence[str]) -> None:
    for text in texts:
        path = parse(text)
        if isinstance(path, Path) and (path / DATABASE).is_file():
            raise UsageError(
                f"{text} is the folder of a study's results, expected the study file: containers need its program"
            )


def _of_study(platform: Platform, text: str, top: int, name: str | None) -> PlatformSources:
    loaded = load_study(Path(text))
    study = loaded.study.name
    if not Path("studies", study, DATABASE).is_file() and platform.has_results(study):
        kept, at, fleet = _trials_on_platform(platform, loaded, text, top), f"{container.MODEL}/weights", study
    else:
        folder = study_folder(text)
        assert folder is not None, "it is the file of a study"
        _, kept = trials_with_weights(folder, top)
        at, fleet = container.MODEL, ""
    models = tuple(
        PlannedModel(
            source=MemberSource(
                job=trial.job.model_dump_json(),
                weights=f"{at}/{trial.weights.name}",
                program_folder=container.PROGRAM,
            ),
            program_folder=str(loaded.folder.absolute()),
            folder="" if fleet else str(trial.weights.parent),
            fleet=fleet,
        )
        for trial in kept
    )
    return PlatformSources(name or study, loaded.first_content(), models)


def _trials_on_platform(platform: Platform, loaded: LoadedStudy, text: str, top: int) -> list[KeptTrial]:
    """The best trials of a study whose results are on the platform alone; of these only the database is copied.

    Raises:
        UsageError: The study still runs there, or has not so many trials with weights.
        LostPeerError: The copy broke off.
    """
    name = loaded.study.name
    driver = chief_of(platform.members(name))
    if driver is not None and not driver.is_over:
        raise UsageError(f"{text}: fleet {name} {platform.where} and runs, expected the end of the study")
    with TemporaryDirectory(prefix="psfleet-") as temporary:
        folder = Path(temporary)
        if Path(DATABASE) not in [*extracted(platform, fleet_job(loaded), (JOURNAL, DATABASE), folder)]:
            raise UsageError(f"{text}: the results of fleet {name} on this platform are not those of a study")
        # The driver removes the weights of all others.
        _, kept = ranked_trials(folder, min(top, loaded.study.keep))
    require_weights(len(kept), top, f"study {name} on this platform")
    return kept


def _of_run(
    platform: Platform, text: str, step: int | None, best: bool, reads_stores: bool
) -> tuple[Job, PlannedModel]:
    path = parse(text)
    if not isinstance(path, Path):
        _require_no_store(text, reads_stores)
    source = MemberSource(run=container.MODEL, step=step, best=best, program_folder=container.PROGRAM)
    if isinstance(path, Path) and is_yaml_file(path):
        return _of_fleet(platform, path, source, reads_stores)
    # A run may train there.
    checkpoint = versions.find(path, step, best, is_live=True)
    job, program_folder = recorded_program(checkpoint)
    home = str(program_home(text, job, program_folder))
    if isinstance(path, Path) and isinstance(checkpoint.folder, Path):
        return job, PlannedModel(source=source, program_folder=home, folder=str(path.absolute()))
    if isinstance(path, Path):
        _require_no_store(str(checkpoint.folder), reads_stores)
    in_store = source.model_copy(update={"run": job.checkpoint.store if isinstance(path, Path) else text})
    return job, PlannedModel(source=in_store, program_folder=home)


def _of_fleet(platform: Platform, path: Path, source: MemberSource, reads_stores: bool) -> tuple[Job, PlannedModel]:
    job = parse_job(read_job_file(path), str(path))
    home = str(path.parent.resolve())
    if job.checkpoint.store is not None:
        _require_no_store(f"checkpoint.store of {path}", reads_stores)
        return job, PlannedModel(source=source.model_copy(update={"run": job.checkpoint.store}), program_folder=home)
    require_results(platform, path, job)
    return job, PlannedModel(source=source, program_folder=home, fleet=job.name)


def _require_no_store(what: str, reads_stores: bool) -> None:
    if not reads_stores:
        raise UsageError(
            f"{what} is in an object store, from which containers on this platform do not serve: expected a service on "
            "this machine, without --on"
        )
