"""The evaluation of a checkpoint, in its folder: it lasts as long as the checkpoint, and is copied with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.files import replace_file
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
    content = _Evaluation(metrics=dict(metrics)).model_dump_json().encode()
    if isinstance(checkpoint.folder, StoreFolder):
        (checkpoint.folder / FILE_NAME).write_bytes(content)
        return
    replace_file(checkpoint.folder / FILE_NAME, content)


def evaluated(checkpoints: Iterable[Checkpoint]) -> list[Evaluated]:
    """Selects the committed checkpoints whose metrics are stored, and keeps their order.

    Raises:
        StoreError: A store does not answer: which checkpoint is the best one is not known.
    """
    found = []
    for checkpoint in checkpoints:
        try:
            content = (checkpoint.folder / FILE_NAME).read_bytes()
            found.append(Evaluated(checkpoint, _Evaluation.model_validate_json(content).metrics))
        except StoreError:
            raise
        except (OSError, ValidationError):
            continue
    return found


def not_reached(checkpoints: Iterable[Checkpoint], found: Iterable[Evaluated]) -> list[Checkpoint]:
    """The committed checkpoints that evaluation has not reached yet, the oldest first.

    Evaluations are made in the order of generations and steps. So these are the checkpoints after the last one with
    metrics; one before it without metrics was skipped, because its evaluation was not in time.

    Args:
        checkpoints: All committed checkpoints.
        found: Those of them whose metrics can be read.
    """
    ordered = sorted(checkpoints, key=lambda each: (each.generation, each.step))
    read = {each.checkpoint.folder for each in found}
    return ordered[max((number for number, each in enumerate(ordered, 1) if each.folder in read), default=0) :]


def best(found: Iterable[Evaluated], watched: Monitored) -> Evaluated | None:
    """The checkpoint with the best value of a metric, of equal ones the earliest; None if no value is finite."""
    kept: Evaluated | None = None
    for each in sorted(found, key=lambda each: each.age):
        value = each.metrics.get(watched.metric)
        than = kept.metrics[watched.metric] if kept is not None else None
        if value is not None and watched.gain(value, than) > 0:
            kept = each
    return kept
