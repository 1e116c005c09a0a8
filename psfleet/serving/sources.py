"""Whose models a service has: those of runs, or those of the best trials of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.errors import NoCheckpointError, UsageError
from psfleet.job import trial_records
from psfleet.job.job import Job, job_from_json
from psfleet.job.reading import is_yaml_file, read_job_file
from psfleet.job.service_access import MemberSource
from psfleet.plurals import counted
from psfleet.sweep import results
from psfleet.sweep.database import DATABASE, opened, optuna_module, storage_errors
from psfleet.sweep.loaded_study import load_study


@dataclass(frozen=True)
class KeptTrial:
    """A complete trial whose weights are kept.

    Attributes:
        number: Of the trial.
        job: That trained it.
        folder: Of the study's results.
    """

    number: int
    job: Job
    folder: Path

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return trial_records.weights_file(self.folder, self.number).absolute()

    def job_here(self) -> Job:
        """The job with a program that is found in `folder`, wherever that of the study is."""
        _, _, name = self.job.program.partition(":")
        return self.job.model_copy(update={"program": f"{results.BEST_PROGRAM}:{name}"})


@dataclass(frozen=True)
class Sources:
    """The models of a service.

    Attributes:
        name: Of the job or the study: that of the ensemble.
        members: Whose model each has.
        replicas: Members with each of them.
    """

    name: str
    members: tuple[MemberSource, ...]
    replicas: int = 1


def of_runs(runs: Sequence[str], step: int | None, best: bool, name: str | None = None) -> Sources:
    """A member for each run.

    Args:
        name: Of the model; None: that of the jobs.

    Raises:
        UsageError: There is no such run or checkpoint, a run is given twice, or the runs are of jobs with other names.
        NoCheckpointError: A run has no valid checkpoint.
    """
    require_each_once(runs)
    found = name_of_all([_name_of_job(run, step, best) for run in runs], name)
    return Sources(found, tuple(MemberSource(run=_absolute(run), step=step, best=best) for run in runs))


def require_each_once(runs: Sequence[str]) -> None:
    """Checks that no run is given twice.

    Raises:
        UsageError: One is.
    """
    if len(set(runs)) != len(runs):
        raise UsageError(f"{next(run for run in runs if runs.count(run) > 1)} is given twice, expected each run once")


def name_of_all(names: Sequence[str], given: str | None) -> str:
    """The name of a service: the given one, or that of the jobs of all its runs.

    Raises:
        UsageError: The jobs have several names, and none is given.
    """
    if len(set(names)) > 1 and given is None:
        raise UsageError(f"the runs are of jobs {', '.join(sorted(set(names)))}, expected one name, or --name")
    return given or names[0]


def study_folder(text: str) -> Path | None:
    """The folder of the results of a study, given as such or as the study file; None: the text names no study.

    Raises:
        UsageError: It is the file of a study without results, or a job file.
        NoCheckpointError: There is nothing in that place, neither a run nor a study.
    """
    path = parse(text)
    if not isinstance(path, Path):
        return None
    if not path.exists():
        raise NoCheckpointError(f"{text}: no such file or folder, expected a run, a checkpoint or a study")
    if is_yaml_file(path):
        content = read_job_file(path)
        if "program" in content and "space" not in content:
            raise UsageError(
                f"{text} is a job file, expected a run folder, for example runs/{content.get('name', 'NAME')}, or a "
                "study; with --on a job file is that of a fleet in containers"
            )
        path = Path("studies") / load_study(path).study.name
        if not (path / DATABASE).is_file():
            raise UsageError(f"{text}: {path} has no results of that study, expected psfleet sweep {text} before")
    return path if (path / DATABASE).is_file() else None


def of_study(folder: Path, top: int) -> Sources:
    """A member for each of the best trials.

    Raises:
        UsageError: The study has not so many trials with weights, or Optuna is not installed.
        StorageError: The database is locked.
    """
    name, kept = trials_with_weights(folder, top)
    return Sources(name, tuple(map(_member, kept)))


def trials_with_weights(folder: Path, top: int) -> tuple[str, list[KeptTrial]]:
    """As `best_trials`; raises as `of_study`."""
    name, kept = best_trials(folder, top)
    require_weights(len(kept), top, str(folder))
    return name, kept


def require_weights(number: int, top: int, where: str) -> None:
    """Checks that there are weights of so many of the best trials.

    Raises:
        UsageError: There are less.
    """
    if number < top:
        raise UsageError(
            f"--top {top}: {where} has weights of the best {counted(number, 'trial')}, expected at most as many; only "
            "complete trials have weights, as many as `keep` of the study file says"
        )


def best_trials(folder: Path, top: int) -> tuple[str, list[KeptTrial]]:
    """As `ranked_trials`, of those whose weights are there."""
    name, best = ranked_trials(folder, top)
    return name, [each for each in best if each.weights.is_file()]


def ranked_trials(folder: Path, top: int) -> tuple[str, list[KeptTrial]]:
    """The name of a study, and the best of its complete trials, the best one first.

    Raises:
        UsageError: The folder has no study or several, or Optuna is not installed.
        StorageError: The database is locked.
    """
    optuna = optuna_module()
    with storage_errors(folder):
        storage = opened(folder / DATABASE)
        names = optuna.get_all_study_names(storage)
        if len(names) != 1:
            raise UsageError(f"{folder} has {len(names)} studies, expected one")
        study = optuna.load_study(study_name=names[0], storage=storage)
        best = results.best_of(study.direction.name.lower(), study.get_trials(deepcopy=False))[:top]
    return names[0], [_kept(folder, trial) for trial in best]


def _kept(folder: Path, trial: Any) -> KeptTrial:
    job = job_from_json(trial.user_attrs[trial_records.JOB], f"trial {trial.number}")
    return KeptTrial(trial.number, job, folder)


def _member(trial: KeptTrial) -> MemberSource:
    return MemberSource(
        job=trial.job_here().model_dump_json(),
        weights=str(trial.weights),
        program_folder=str(trial.folder.absolute()),
    )


def _name_of_job(run: str, step: int | None, best: bool) -> str:
    checkpoint = versions.find(parse(run), step, best, is_live=True)
    job, _ = recorded_program(checkpoint)
    return job.name


def _absolute(run: str) -> str:
    location = parse(run)
    return str(location.absolute()) if isinstance(location, Path) else run
