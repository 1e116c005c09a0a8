"""What a run leaves to read: `report.json` at its end, `history.jsonl` and `events.jsonl` while it goes.

Every field carries its meaning and unit as its description; `docs/report.md` is compared with this schema by a test.
Numbers that are not finite are written as the texts "NaN", "Infinity" and "-Infinity", so the files stay valid JSON.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from psfleet.errors import BadJobError, UsageError

Count = Annotated[int, Field(ge=0)]
StalenessValue = Annotated[str, Field(pattern=r"^\d+$")]
OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


class Record(BaseModel):
    """A part of what a run leaves: unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class StepSecs(Record):
    """How long steps took."""

    p50: float | None = Field(None, description="Median time of a step in seconds; null: no step was timed.")
    p95: float | None = Field(
        None, description="Time in seconds that 95 % of the steps did not exceed; null: no step was timed."
    )


class WorkerGradients(Record):
    """One worker's gradients, as ps 0 counts them."""

    pushed: Count = Field(0, description="Gradients that the worker pushed.")
    used: Count = Field(0, description="Those of them that became part of an update.")


class PsGradients(Record):
    """The gradients that one ps received."""

    pushed: Count = Field(0, description="Gradients that reached this ps.")
    used: Count = Field(0, description="Those of them that became part of an update of its shard.")
    dropped: Count = Field(0, description="Those of them that were thrown away: pushed - used.")


class Gradients(Record):
    """Where the gradients went, as ps 0 counts them. Each ps decides for itself which it uses: see `per_ps`."""

    pushed: Count = Field(0, description="Gradients that workers pushed.")
    used: Count = Field(0, description="Gradients that became part of an update.")
    dropped: Count = Field(0, description="Gradients that were thrown away: pushed - used.")
    since_step: Count = Field(
        0, description="The step from which all these are counted: where this run went on, or after the loss of a ps."
    )
    per_worker: dict[str, WorkerGradients] = Field(default_factory=dict, description="The same by worker index.")
    per_ps: list[PsGradients] = Field(
        default_factory=list, description="The same by ps, in the order of their indices."
    )


class Placement(Record):
    """How evenly the parameters lie on the ps."""

    ps: list[Count] = Field(
        default_factory=list,
        description="Bytes of the model on each ps (parameters, state, frozen weights), in the order of indices.",
    )
    max_over_mean: float = Field(1.0, description="Bytes on the fullest ps divided by the mean; 1: perfectly even.")


class Event(Record):
    """Something that happened to a process of the fleet; also one line of `events.jsonl`."""

    time: float = Field(description="When, in seconds since 1970-01-01 UTC.")
    role: str = Field(description="Role of the process: ps, worker, chief, spare or launcher.")
    index: Count = Field(description="Index of the process in its role.")
    kind: str = Field(description="What happened, in a word, such as killed, restarted or rollback.")
    cause: str = Field(description="Why it happened, in one line.")
    steps_lost: Count = Field(0, description="Applied steps that have to be made again because of it.")


class CheckpointInfo(Record):
    """The newest verified checkpoint."""

    path: str = Field(description="Folder of the checkpoint.")
    step: Count = Field(description="Updates that its parameters have seen.")


class Point(Record):
    """One line of `history.jsonl`: the state of the training at one step."""

    time: float = Field(description="When, in seconds since 1970-01-01 UTC.")
    step: Count = Field(description="Updates applied so far.")
    generation: Count = Field(description="The generation of the fleet's state that made this step.")
    loss: float = Field(description="The chief's training loss at this step, in the unit of the program's loss.")
    step_secs: float = Field(description="Mean time of a step since the point before, in seconds.")
    examples_per_sec: float = Field(description="Examples of used gradients per second since the point before.")


class Report(Record):
    """How a run went; the content of `report.json`."""

    FILE_NAME: ClassVar[str] = "report.json"

    status: Literal["done", "stopped", "failed"] = Field(
        description="done: the target is reached and its checkpoint verified; stopped: a signal ended the run, which "
        "can be resumed; failed: everything else."
    )
    exit_code: Count = Field(description="Exit code of the run; 0 if and only if the status is done.")
    error: OneLine | None = Field(None, description="What ended the run, in one line; null if it is done.")
    name: str = Field(description="`name` of the job.")
    run: str = Field(description="Identifier of this start of the run; a resumed run has one of its own.")
    mode: str = Field(description="`update.mode` of the job.")
    target_step: Count = Field(description="Updates after which the run is done: `train.steps` of the job.")
    final_step: Count = Field(0, description="Updates that the model had seen at the end.")
    generation: Count = Field(
        0, description="Generation of the fleet's state at the end; each rollback begins a new one."
    )
    seconds: float = Field(0.0, description="Seconds from the start of this run (or resumed part of it) to its end.")
    examples_per_sec: float = Field(0.0, description="Examples of used gradients per second of training.")
    step_secs: StepSecs = Field(default_factory=StepSecs, description="How long steps took.")
    loss: float | None = Field(
        None, description="Last training loss, in the unit of the program's loss; null: there was none."
    )
    eval: dict[str, float] = Field(
        default_factory=dict,
        description="Metrics of the last evaluation by name, in the units of the program's metrics.",
    )
    gradients: Gradients = Field(default_factory=Gradients, description="Where the gradients went.")
    staleness: dict[StalenessValue, Count] = Field(
        default_factory=dict,
        description="By staleness (updates applied between reading weights and applying the gradient): number of "
        "gradients that ps 0 received.",
    )
    placement: Placement = Field(default_factory=Placement, description="How evenly the parameters lie on the ps.")
    restarts: Count = Field(0, description="How many processes were started again.")
    events: list[Event] = Field(default_factory=list, description="What happened to the fleet, oldest first.")
    checkpoint: CheckpointInfo | None = Field(None, description="The newest verified checkpoint; null: there is none.")
    versions: dict[str, str] = Field(default_factory=dict, description="Version of each piece of software by name.")

    def write(self, folder: Path) -> Path:
        """Puts `report.json` into the folder in one rename, so that no reader sees half of it; returns its path."""
        path = folder / self.FILE_NAME
        unfinished = path.with_suffix(".json.tmp")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        return path

    @classmethod
    def read(cls, folder: Path) -> Report:
        """The report in a run's folder.

        Raises:
            UsageError: There is none, or it cannot be read.
            BadJobError: It is not a report of this version.
        """
        path = folder / cls.FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise UsageError(f"report {path}: {error.strerror or error}") from error
        except ValidationError as error:
            raise _mismatch(str(path), error) from error


RecordT = TypeVar("RecordT", bound=Record)


class _JsonLines(Generic[RecordT]):
    """Records in a file, one per line, that only grows: a writer that is killed tears its last line at most."""

    _record: type[RecordT]

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: RecordT) -> None:
        """Adds one line. What a killed writer left of its last line stays, ended, and is skipped by `read`."""
        line = record.model_dump_json().encode() + b"\n"
        with self.path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def read(self) -> list[RecordT]:
        """All whole records in the order written; none if there is no file.

        Raises:
            BadJobError: A line is whole but not a record of this version.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        records = (self._parsed(line, number) for number, line in enumerate(lines, 1) if line)
        return [record for record in records if record is not None]

    def _parsed(self, line: bytes, number: int) -> RecordT | None:
        """The record of a line, or None for a torn one: the beginning of a JSON object is never JSON itself."""
        try:
            return self._record.model_validate_json(line)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                return None
            raise _mismatch(f"{self.path} line {number}", error) from error


class History(_JsonLines[Point]):
    """`history.jsonl`: the points that the chief appends, over kills, rollbacks and resumed runs."""

    FILE_NAME: ClassVar[str] = "history.jsonl"
    _record = Point

    def curve(self) -> list[Point]:
        """The points of the history that survived, by ascending step: a rollback undoes the steps behind it."""
        kept: list[Point] = []
        for point in self.read():
            while kept and kept[-1].step >= point.step:
                kept.pop()
            kept.append(point)
        return kept


class EventLog(_JsonLines[Event]):
    """`events.jsonl`: what happened to the fleet, as it happens."""

    FILE_NAME: ClassVar[str] = "events.jsonl"
    _record = Event


def _mismatch(source: str, error: ValidationError) -> BadJobError:
    """The first problem of a file as one line."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "content"
    return BadJobError(f"{source}: {field}: {problem['msg']}")
