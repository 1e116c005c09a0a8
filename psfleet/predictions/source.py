"""The trained model that `psfleet predict` uses: a checkpoint of a run, or the best trial of a study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.errors import UsageError
from psfleet.job.job import Job, job_from_json
from psfleet.launch.runs import has_live_run
from psfleet.serving.sources import best_trials, study_folder


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
    """The model of a run folder, checkpoint or store, or of a study: its file, or the folder of its results.

    Args:
        step, best: As of `versions.find`; of a study it is the best trial.

    Raises:
        UsageError: There is no such checkpoint, trial or program.
        NoCheckpointError: There is no checkpoint, or none is valid.
    """
    source = parse(text)
    if isinstance(source, Path) and (folder := study_folder(text)) is not None:
        if step is not None or best:
            raise UsageError(f"{text} is a study, whose best trial is used, expected neither --step nor --best")
        return _best_trial(folder)
    checkpoint = versions.find(source, step, best, isinstance(source, Path) and has_live_run(source))
    job, program_folder = recorded_program(checkpoint)
    return Source(job, program_folder, f"step {checkpoint.step}", checkpoint=str(checkpoint.folder))


def _best_trial(folder: Path) -> Source:
    _, trials = best_trials(folder, 1)
    if not trials:
        raise UsageError(f"{folder}: the best trial has no weights, expected a study with a complete trial")
    ((number, found),) = trials.items()
    job = job_from_json(found.job, f"trial {number}")
    return Source(job, folder, f"trial {number}", weights=found.weights)
