"""The trained model that `psfleet predict` uses: a checkpoint of a run, or the best trial of a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.errors import UsageError
from psfleet.job import trial_records
from psfleet.job.job import Job, job_from_json, parse_job
from psfleet.launch.runs import has_live_run
from psfleet.sweep import results
from psfleet.sweep.database import DATABASE, opened, optuna_module, storage_errors


@dataclass(frozen=True)
class Source:
    """A trained model.

    Attributes:
        job: The job that trained it; `program` is found in `folder`.
        folder: Searched first for the program.
        name: For readers: `step 400` or `trial 7`.
        checkpoint: Path or URL of the checkpoint; None: there is a file with weights.
        weights: Path of that file; None: there is a checkpoint.
    """

    job: Job
    folder: Path
    name: str
    checkpoint: str | None = None
    weights: str | None = None


def find(text: str, step: int | None, best: bool) -> Source:
    """The model of a run folder, checkpoint, store or study folder.

    Args:
        step, best: As of `versions.find`; of a study it is the best trial.

    Raises:
        UsageError: There is no such checkpoint, trial or program.
        NoCheckpointError: There is no checkpoint, or none is valid.
    """
    source = parse(text)
    if isinstance(source, Path) and (source / DATABASE).is_file():
        if step is not None or best:
            raise UsageError(f"{text} is a study, whose best trial is used, expected neither --step nor --best")
        return _best_trial(source)
    checkpoint = versions.find(source, step, best, isinstance(source, Path) and has_live_run(source))
    content, folder = checkpoint.job, checkpoint.extra.get("program_folder")
    if content is None or not isinstance(folder, str):
        raise UsageError(f"checkpoint {checkpoint.folder} names no program, expected one of psfleet train")
    job = parse_job(content, source=f"job of checkpoint {checkpoint.folder}")
    return Source(job, Path(folder), f"step {checkpoint.step}", checkpoint=str(checkpoint.folder))


def _best_trial(folder: Path) -> Source:
    optuna = optuna_module()
    with storage_errors(folder):
        storage = opened(folder / DATABASE)
        names = optuna.get_all_study_names(storage)
        study = optuna.load_study(study_name=names[0], storage=storage) if names else None
        best = results.best_of(study.direction.name.lower(), study.get_trials(deepcopy=False)) if study else []
    weights = trial_records.weights_file(folder, best[0].number) if best else None
    if weights is None or not weights.is_file():
        raise UsageError(
            f"{folder}: the study has no weights of a complete trial, expected psfleet sweep to have ended"
        )
    job = job_from_json(best[0].user_attrs[trial_records.JOB], f"trial {best[0].number}")
    # Finds the program wherever the job file of the study is.
    program = f"{results.BEST_PROGRAM}:{job.program.partition(':')[2]}"
    of_study = job.model_copy(update={"program": program})
    return Source(of_study, folder, f"trial {best[0].number}", weights=str(weights.absolute()))
