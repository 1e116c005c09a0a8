"""Schema of a run's records: `report.json`, written at its end, and `history.jsonl` and the like, which grow.

The description of each field is its documentation in `docs/report.md`, which is generated.
Non-finite numbers are written as the texts "NaN", "Infinity" and "-Infinity", so that the files are valid JSON.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import Field, PrivateAttr, ValidationError

from psfleet.checkpoint.location import parse
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import UsageError
from psfleet.report.json_lines import JsonLines, StepLines, mismatch
from psfleet.report.measurements import DataReading, Gradients, Placement, StepSecs
from psfleet.report.records import Attempt, Count, OneLine, Record, StalenessValue, Status, StepRecord


class Event(Record):
    """An event of a process of the fleet; also one line of `events.jsonl`."""

    time: float = Field(description="Unix time in seconds.")
    role: str = Field(description="Role of the process: ps, chief, worker, spare or loader.")
    index: Count = Field(description="Index of the process in its role.")
    kind: str = Field(
        description="`restarted`, `unresponsive`, `program_changed`, `evaluation_skipped`, `checkpoint_failed`, …"
    )
    cause: str = Field(description="Cause of the event, in one line.")
    steps_lost: Count = Field(0, description="Number of applied steps that were lost and have to be repeated.")
    generation: Count = Field(
        0, description="Generation that the restart of a ps starts, the first one tried; 0: the event starts none."
    )


class CheckpointInfo(Record):
    """The newest verified checkpoint."""

    path: str = Field(description="Folder of the checkpoint.")
    step: Count = Field(description="Number of updates that its parameters include.")


class BestInfo(Record):
    """The checkpoint with the best evaluation, by `checkpoint.best` of the job."""

    metric: str = Field(description="Name of the metric.")
    value: float = Field(description="Its value, in the unit of the program's metric.")
    step: Count = Field(description="Number of updates that the checkpoint's parameters include.")
    path: str = Field(description="Folder of the checkpoint.")


class Evaluation(StepRecord):
    """An evaluation of the model; one line of `evaluations.jsonl`."""

    time: float = Field(description="Unix time in seconds at which the evaluation ended.")
    step: Count = Field(description="Number of updates that the evaluated weights include.")
    generation: Count = Field(description="Generation of the fleet's state that the weights are of.")
    secs: float = Field(description="Duration of the evaluation in seconds.")
    metrics: dict[str, float] = Field(description="Metrics by name, in the units of the program's metrics.")


@dataclass(frozen=True)
class _Location:
    """The run folder of a report; reports with the same content are equal wherever they are."""

    folder: Path | None = field(default=None, compare=False)


class Report(Record):
    """Outcome of a run; the content of `report.json`.

    Status, exit code and error are those of the newest attempt. What it did not measure (an attempt that is refused
    trains no step) is as the attempts before left it.
    """

    FILE_NAME: ClassVar[str] = "report.json"
    DRAFT_NAME: ClassVar[str] = ".report.json"
    """The report before the final evaluation, for a chief that replaces one which died in it."""
    UNREADABLE_NAME: ClassVar[str] = "report.json.unreadable"
    """A report that was set aside because it is not one of this version."""

    status: Status = Field(
        description="done: the final step is reached, or training was stopped early (`stopped_early`), and the last "
        "checkpoint is verified; stopped: a signal ended the run, which can be resumed; failed: all other outcomes."
    )
    exit_code: Count = Field(description="Exit code of the run; 0 if and only if the status is done.")
    error: OneLine | None = Field(None, description="Cause of the run's end, in one line; null if the status is done.")
    stopped_early: OneLine | None = Field(
        None,
        description="Why a run that is done ended before `target_step`, by `evaluate.stop` of the job; null: it did "
        "not.",
    )
    name: str = Field(description="`name` of the job.")
    run: str = Field(description="Identifier of the newest attempt; a resumed run has another one.")
    mode: str = Field(description="`update.mode` of the job.")
    target_step: Count = Field(
        description="Final step: `train.steps` of the job, also of a run that was stopped early."
    )
    final_step: Count = Field(0, description="Number of updates that the model includes at the end.")
    generation: Count = Field(
        0, description="Generation of the fleet's state at the end; each rollback starts a new one."
    )
    seconds: float = Field(0.0, description="Duration in seconds of the newest attempt that trained, start included.")
    training_seconds: float = Field(
        0.0,
        description="Those of these seconds in which the chief trained: neither starting, waiting nor evaluating. Of a "
        "chief that was killed they count up to its last point in the history.",
    )
    examples_per_sec: float = Field(0.0, description="Examples of used gradients per second of training.")
    step_secs: StepSecs = Field(default_factory=StepSecs, description="Distribution of step times.")
    loss: float | None = Field(
        None, description="Last training loss, in the unit of the program's loss; null: no step was reported."
    )
    losses: dict[str, float] = Field(
        default_factory=dict, description="Of several losses the last training loss of each, by name."
    )
    eval: dict[str, float] = Field(
        default_factory=dict,
        description="Metrics of the last evaluation by name, in the units of the program's metrics.",
    )
    training_metrics: dict[str, float] = Field(
        default_factory=dict,
        description="Last metrics of the program over its training batches by name, as in `training_metrics.jsonl`.",
    )
    gradients: Gradients = Field(
        default_factory=Gradients,
        description="Numbers of gradients; in averaging mode what a worker pushes after a round is one.",
    )
    staleness: dict[StalenessValue, Count] = Field(
        default_factory=dict,
        description="Number of gradients that ps 0 received, by staleness (updates applied between reading the weights "
        "and applying the gradient).",
    )
    placement: Placement = Field(default_factory=Placement, description="Distribution of the parameters over the ps.")
    data: DataReading | None = Field(
        None, description="With `input.sharding: dynamic`: examples by epoch, of the newest attempt; null: otherwise."
    )
    restarts: Count = Field(0, description="Number of restarts of processes.")
    events: list[Event] = Field(default_factory=list, description="Events of the fleet, the oldest first.")
    checkpoint: CheckpointInfo | None = Field(None, description="The newest verified checkpoint; null: none.")
    best: BestInfo | None = Field(
        None, description="The best checkpoint; null: without `checkpoint.best`, and before its first evaluation."
    )
    versions: dict[str, str] = Field(default_factory=dict, description="Software versions, by name.")
    attempts: list[Attempt] = Field(
        default_factory=list, description="All starts of the run in this folder, the oldest first."
    )
    _location: _Location = PrivateAttr(default_factory=lambda: _Location())

    def show(self) -> None:
        """Shows the page of the report, with its plots, in the output of a notebook cell.

        Raises:
            UsageError: There is no notebook, or the report was neither read from a run folder nor returned by `train`.
        """
        # Imported here because that module needs this one.
        from psfleet.report.notebook import show

        show(self, self._location.folder)

    def located(self, folder: Path) -> Report:
        """This report, as the one of a run folder, whose history `show` plots."""
        copy = self.model_copy()
        copy._location = _Location(folder)
        return copy

    def write(self, folder: Path, name: str = FILE_NAME) -> Path:
        """Writes `report.json`, or the draft, to the folder atomically, by a rename; returns its path."""
        path = folder / name
        temporary = path.with_suffix(".json.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return path

    @classmethod
    def read(cls, folder: Path | str, name: str = FILE_NAME) -> Report:
        """Reads the report, or the draft, in a run folder, or the copy of the report in the store of a URL.

        Raises:
            UsageError: It is missing or cannot be read.
            StoreError: The store does not answer.
            BadJobError: It is not a report of this version.
        """
        place = parse(str(folder))
        path = place / name
        try:
            report = cls.model_validate_json(path.read_bytes())
            return report.located(place) if isinstance(place, Path) else report
        except OSError as error:
            if isinstance(error, StoreError) and not error.is_denied:
                raise
            raise UsageError(f"report {path}: {error.strerror or error}") from error
        except ValidationError as error:
            raise mismatch(str(path), error) from error


class EvaluationLog(StepLines[Evaluation]):
    """`evaluations.jsonl`: the evaluations of a run folder, which continue like its history."""

    FILE_NAME: ClassVar[str] = "evaluations.jsonl"
    _record = Evaluation


class EventLog(JsonLines[Event]):
    """`events.jsonl`: the events of the fleet, appended as they occur."""

    FILE_NAME: ClassVar[str] = "events.jsonl"
    _record = Event
