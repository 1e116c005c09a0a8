"""Schema of the job file, which is read and validated as a whole before TensorFlow is imported.

The description of each field is its documentation: `docs/job-file.md` is generated from this schema.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from psfleet.errors import BadJobError, UsageError
from psfleet.job.callback import CallbackEntry
from psfleet.job.container import Container
from psfleet.job.fields import Options, Section
from psfleet.job.kubernetes import Kubernetes, require_own_folders
from psfleet.job.losses import LossName, require_optimizers
from psfleet.job.monitored import Monitored
from psfleet.job.optimizer import AnyOptimizer, Optimizer, Schedule
from psfleet.job.parts import require_parts
from psfleet.job.problems import problem
from psfleet.job.reading import override, path_loader, read_mapping
from psfleet.job.sections import Checkpoint, Deadlines, Device, Evaluate, Fleet, Summaries, Train
from psfleet.job.update import Update, require_in_graph, require_rounds, require_update

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
"""Names of jobs: they are part of host names, and of names in Docker and Kubernetes."""
MAX_NAME = 40
"""Length of a name in characters."""


class Job(Section):
    """One training run."""

    name: str = Field(
        pattern=NAME_PATTERN,
        max_length=MAX_NAME,
        description="Name of the job: lower-case letters, digits and dashes.",
    )
    program: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:callable` that returns the training program; the job file's folder is searched first.",
    )
    options: Options = Field(default_factory=dict, description="Keyword arguments of the callable.")
    fleet: Fleet = Field(default_factory=Fleet, description="Number of processes of each role.")
    update: Update = Field(default_factory=Update, description="How gradients are combined into updates.")
    optimizers: dict[LossName, Optimizer] | None = Field(
        None,
        min_length=1,
        description="For a program with several losses, instead of `optimizer`: the optimizer of each, by its name, "
        "with the fields of `optimizer`; see [above](#several-losses).",
    )
    optimizer: AnyOptimizer | None = Field(
        None, discriminator="name", description="Update rule and learning rate; required without `optimizers`."
    )
    train: Train = Field(description="Number of steps, and batches.")
    evaluate: Evaluate = Field(default_factory=Evaluate, description="When the chief evaluates the model.")
    checkpoint: Checkpoint = Field(
        default_factory=Checkpoint, description="When checkpoints are written, and how many are kept."
    )
    summaries: Summaries = Field(default_factory=Summaries, description="What is written to `tensorboard/`.")
    device: Device = Field(default_factory=Device, description="Threads and accelerators.")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="Timeouts.")
    callbacks: list[CallbackEntry] = Field(
        default_factory=list, description="What receives the progress of the run; see [callbacks.md](callbacks.md)."
    )
    container: Container = Field(default_factory=Container, description="Images, mounts and limits in containers.")
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="What a cluster requires of pods and Jobs.")
    tls: bool = Field(
        False,
        description="Whether containers use mutual TLS for all traffic between them; ignored by `psfleet train`, whose "
        "processes communicate over loopback.",
    )

    @property
    def quorum(self) -> int:
        """Number of gradients that are averaged in one sync step."""
        return self.update.quorum or self.fleet.regular_replicas

    @property
    def rules(self) -> Mapping[str, AnyOptimizer]:
        """The optimizers by the names of their losses; the only one of a program with one loss by an empty name."""
        return self.optimizers or {"": self.rule}

    @property
    def rule(self) -> AnyOptimizer:
        """The only optimizer; a job with `optimizers` has none."""
        assert self.optimizer is not None, "a job without optimizer has optimizers"
        return self.optimizer

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of the only optimizer; None with `optimizers`."""
        return None if self.optimizer is None else self.optimizer.schedule

    @property
    def push_examples(self) -> int:
        """Number of examples in what a worker pushes at once."""
        return self.train.gradient_examples * self.update.round_steps

    @property
    def least_workers(self) -> int:
        """The smallest number of workers and spares that can make a step."""
        if self.update.is_in_graph:
            return self.fleet.processes
        return (self.quorum if self.update.has_quorum else 1) * self.fleet.parts

    @property
    def most_workers(self) -> int:
        """The largest number of workers and spares of a running fleet."""
        is_fixed = self.update.is_in_graph or self.fleet.parts > 1
        return self.fleet.processes if is_fixed else self.fleet.worker_limit

    @property
    def monitored(self) -> dict[str, Monitored]:
        """The sections that watch a metric of the evaluations, by their names in the job file."""
        sections = {
            "evaluate.stop": self.evaluate.stop,
            "checkpoint.best": self.checkpoint.best,
            "optimizer.schedule": self.schedule,
        }
        return {name: section for name, section in sections.items() if isinstance(section, Monitored)}

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
        require_parts(self.fleet, self.update.quorum, self.tls)
        require_update(self.update, self.fleet.replicas)
        if self.update.is_in_graph:
            require_in_graph(self.update, self.quorum, self.fleet.replicas, self.fleet.max_workers, self.tls)
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


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Reads and validates a job file.

    Args:
        path: The YAML file.
        overrides: `key=value` texts; a dotted key addresses a field of a section, the value is YAML.

    Raises:
        UsageError: The file cannot be read, or an override is not `key=value`.
        BadJobError: The content is not a valid job; names each invalid field.
    """
    content = read_mapping(path, "job file", path_loader(path.resolve().parent))
    return parse_job(content, str(path), overrides)


def name_of(text: str) -> str:
    """The name of a job, given as such or as a job file.

    Raises:
        UsageError: It is neither.
    """
    path = Path(text)
    if path.is_file():
        return load_job(path).name
    if re.fullmatch(NAME_PATTERN, text):
        return text
    raise UsageError(f"{text!r}: expected a job file that exists, or the name of a job")


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
