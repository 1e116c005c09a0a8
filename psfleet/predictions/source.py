"""The trained model that `psfleet predict` uses: a checkpoint of a run, or the best trial of a study."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import Folder, parse
from psfleet.checkpoint.manifest import MANIFEST, Checkpoint
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.job.prediction_files import Request
from psfleet.launch.runs import has_live_run
from psfleet.serving.sources import best_trials, study_folder

CHECKPOINT, WEIGHTS = "checkpoint", "weights.safetensors"
"""Names under which containers fetch the files of the model: in this folder, or this file."""


@dataclass(frozen=True)
class Source:
    """A trained model.

    Attributes:
        job: The job that trained it; `program` is found in `folder`.
        folder: Searched first for the program.
        name: For readers: `step 400` or `trial 7`.
        program: The program of the job as its own folder has it, where `folder` is not.
        checkpoint: The checkpoint; None: there is a file with weights.
        weights: That file; None: there is a checkpoint.
    """

    job: Job
    folder: Path
    name: str
    program: str
    checkpoint: Checkpoint | None = None
    weights: Path | None = None

    def request(self, data: str, workers: int) -> Request:
        """What workers of this machine predict, which read the model themselves; arguments as of `Request`."""
        folder = None if self.checkpoint is None else self.checkpoint.folder
        return Request(
            job=self.job.model_dump_json(),
            checkpoint=None if folder is None else str(folder.absolute() if isinstance(folder, Path) else folder),
            weights=None if self.weights is None else str(self.weights.absolute()),
            data=data,
            workers=workers,
        )

    def request_of_containers(self, data: str, workers: int) -> Request:
        """What containers predict: they fetch `files`, and have the program."""
        names = {"weights": WEIGHTS} if self.weights is not None else {"checkpoint": CHECKPOINT}
        job = self.job.model_copy(update={"program": self.program})
        changes = {"job": job.model_dump_json(), "digest": self._digest(), "files": tuple(self.files()), **names}
        return self.request(data, workers).model_copy(update=changes)

    def files(self) -> dict[str, Folder]:
        """The files of the model, on a disk or in a store, by the names under which containers fetch them."""
        if self.weights is not None:
            return {WEIGHTS: self.weights}
        assert self.checkpoint is not None, "a source has one of the two"
        folder = self.checkpoint.folder
        return {
            f"{CHECKPOINT}/{name}": folder / name for name in (MANIFEST, *(part.file for part in self.checkpoint.parts))
        }

    def _digest(self) -> str:
        """A SHA-256 that changes with the weights."""
        if self.weights is not None:
            with self.weights.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        assert self.checkpoint is not None, "a source has one of the two"
        return hashlib.sha256(" ".join(part.sha256 for part in self.checkpoint.parts).encode()).hexdigest()


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
    return Source(job, program_folder, f"step {checkpoint.step}", job.program, checkpoint=checkpoint)


def _best_trial(folder: Path) -> Source:
    _, trials = best_trials(folder, 1)
    if not trials:
        raise UsageError(f"{folder}: the best trial has no weights, expected a study with a complete trial")
    (found,) = trials
    return Source(found.job_here(), folder, f"trial {found.number}", found.job.program, weights=found.weights)
