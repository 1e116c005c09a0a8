"""The evaluation of a checkpoint, in its folder: it lasts as long as the checkpoint, and is copied with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from psfleet.checkpoint.manifest import Checkpoint, read_manifest
from psfleet.checkpoint.store import folders
from psfleet.errors import NoCheckpointError
from psfleet.job.monitored import Monitored

FILE_NAME = "evaluation.json"


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint with its metrics by name."""

    checkpoint: Checkpoint
    metrics: Mapping[str, float]

    @property
    def age(self) -> tuple[int, int]:
        """Orders checkpoints: step and generation."""
        return self.checkpoint.step, self.checkpoint.generation


class _Evaluation(BaseModel):
    """Schema of the file."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    metrics: dict[str, float]


def write(checkpoint: Checkpoint, metrics: Mapping[str, float]) -> None:
    """Stores the metrics of a committed checkpoint, by a rename.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = checkpoint.folder / f".{FILE_NAME}.tmp"
    temporary.write_text(_Evaluation(metrics=dict(metrics)).model_dump_json(), encoding="utf-8")
    temporary.replace(checkpoint.folder / FILE_NAME)


def committed(root: Path) -> list[Checkpoint]:
    """The committed checkpoints in a folder, the newest first; contents are not read."""
    found = []
    for folder in folders(root):
        try:
            found.append(read_manifest(folder))
        except NoCheckpointError:
            continue
    return found


def not_reached(root: Path) -> list[Checkpoint]:
    """The committed checkpoints after the last one whose metrics can be read, the oldest first.

    Those before it were not evaluated in time. Evaluations are in the order of generations and steps.
    """
    found = sorted(committed(root), key=lambda each: (each.generation, each.step))
    read = {each.checkpoint.folder for each in evaluated(root)}
    return found[max((number for number, each in enumerate(found, 1) if each.folder in read), default=0) :]


def evaluated(root: Path) -> list[Evaluated]:
    """The committed checkpoints in a folder whose metrics are stored, the newest first."""
    found = []
    for checkpoint in committed(root):
        try:
            content = (checkpoint.folder / FILE_NAME).read_bytes()
            found.append(Evaluated(checkpoint, _Evaluation.model_validate_json(content).metrics))
        except (OSError, ValidationError):
            continue
    return found


def best(found: Iterable[Evaluated], watched: Monitored) -> Evaluated | None:
    """The checkpoint with the best value of a metric, of equal ones the earliest; None if no value is finite."""
    kept: Evaluated | None = None
    for each in sorted(found, key=lambda each: each.age):
        value = each.metrics.get(watched.metric)
        than = kept.metrics[watched.metric] if kept is not None else None
        if value is not None and watched.gain(value, than) > 0:
            kept = each
    return kept
