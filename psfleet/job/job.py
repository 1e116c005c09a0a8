"""A job, whose file is read and validated as a whole before TensorFlow is imported."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from psfleet.errors import BadJobError, UsageError
from psfleet.job.fleet import require_colocated
from psfleet.job.gpus import require_towers, require_workers
from psfleet.job.input import require_loaders
from psfleet.job.job_fields import NAME_PATTERN, JobFields
from psfleet.job.kubernetes import require_own_folders
from psfleet.job.losses import require_optimizers
from psfleet.job.optimizer import AnyOptimizer
from psfleet.job.parts import require_parts
from psfleet.job.problems import problem
from psfleet.job.reading import is_study, override, read_job_file
from psfleet.job.tables import require_tables
from psfleet.job.update import require_in_graph, require_rounds, require_update


class Job(JobFields):
    """One training run."""

    @field_validator("optimizer")
    @classmethod
    def _is_there(cls, value: AnyOptimizer | None, info: ValidationInfo) -> AnyOptimizer | None:
        # With invalid `optimizers`, which are not in the data, the error is theirs.
        if value is None and info.data.get("optimizers", "invalid") is None:
            raise ValueError("missing, expected a value")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        require_optimizers(self.optimizer, self.optimizers, self.train.alternate, self.update.mode)
        require_parts(self.fleet, self.update.quorum, self.device.replicas)
        require_colocated(self.fleet, self.update.is_in_graph)
        require_update(self.update, self.fleet.replicas)
        if self.update.is_in_graph:
            require_in_graph(self.update, self.quorum, self.fleet.replicas, self.fleet.max_workers)
        require_loaders(self.input, self.fleet, self.update.is_in_graph)
        self._require_devices()
        require_tables(
            self.tables, self.update, self.rules, self.train.accumulate, self.device.replicas, self.fleet.parts
        )
        every_steps = self.evaluate.every_steps
        due = {
            "train.steps": self.train.steps,
            "checkpoint.every_steps": self.checkpoint.every_steps,
            "evaluate.every_steps": every_steps,
        }
        require_rounds(self.update, due, None if self.schedule is None else self.schedule.kind)
        if every_steps is None and self.monitored:
            raise ValueError(
                f"evaluate.every_steps is null, expected a number of steps with {' and '.join(self.monitored)}"
            )
        require_own_folders(self.kubernetes, self.container.mounts)
        has_lamb = any(rule.name == "lamb" for rule in self.rules.values())
        if has_lamb and self.fleet.ps > 1 and self.update.mode != "averaging":
            raise ValueError(
                f"fleet.ps is {self.fleet.ps}, expected 1 with optimizer lamb: it needs the norm of each tensor, and "
                "a tensor may lie on several ps"
            )
        return self

    def _require_devices(self) -> None:
        """Refuses GPUs of workers that the fleet does not have, and towers that do not fit; raises ValueError."""
        visible, most = self.device.visible_gpus.worker, self.fleet.max_workers
        num_workers = self.fleet.processes
        counted = "fleet.workers + fleet.spares" if most is None else "fleet.max_workers"
        require_workers(visible, most or num_workers, counted)
        require_towers(
            self.device.replicas,
            self.device.virtual_cpus,
            visible,
            batch_size=self.train.batch_size,
            num_workers=num_workers,
            is_in_graph=self.update.is_in_graph,
        )


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Reads and validates a job file.

    Args:
        path: The YAML file.
        overrides: `key=value` texts; a dotted key addresses a field of a section, the value is YAML.

    Raises:
        UsageError: The file cannot be read, or an override is not `key=value`.
        BadJobError: The content is not a valid job; names each invalid field.
    """
    return parse_job(read_job_file(path), str(path), overrides)


def name_of(text: str, expected: str = "a job file that exists, or the name of a job") -> str:
    """The name of a job or study, given as such or as its file.

    Args:
        expected: What the text may be, for the message.

    Raises:
        UsageError: It is neither.
    """
    path = Path(text)
    if path.is_file():
        content = read_job_file(path)
        if not is_study(content):
            return parse_job(content, str(path)).name
        text = str(content.get("name"))
    if re.fullmatch(NAME_PATTERN, text):
        return text
    raise UsageError(f"{text!r}: expected {expected}")


def parse_job(content: Mapping[str, Any], source: str = "job", overrides: Sequence[str] = ()) -> Job:
    """Validates a mapping as a job.

    Args:
        source: Where the content is from, for messages.
        overrides: As in `load_job`.

    Raises:
        UsageError: An override is not `key=value`.
        BadJobError: The content is not a valid job; names each invalid field, its value and what was expected.
    """
    fields = copy.deepcopy(dict(content)) if overrides else dict(content)
    for text in overrides:
        override(fields, text)
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(problem(item, Job) for item in error.errors())
        raise BadJobError(f"{source}: {problems}") from error


def job_from_json(text: str, source: str = "job") -> Job:
    """Reads and validates a resolved job, as `Job.model_dump_json` writes it.

    Args:
        source: Where the text is from, for messages.

    Raises:
        BadJobError: The text is not a valid job as JSON; names each invalid field.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadJobError(f"{source}: expected a resolved job as JSON") from error
    if not isinstance(content, dict):
        raise BadJobError(f"{source}: expected a resolved job as JSON")
    return parse_job(content, source)
