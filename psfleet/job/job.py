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

import yaml
from pydantic import Field, ValidationError, model_validator

from psfleet.errors import BadJobError, UsageError
from psfleet.job.callback import CallbackEntry
from psfleet.job.container import Container
from psfleet.job.fields import Options, Section
from psfleet.job.kubernetes import Kubernetes, require_own_folders
from psfleet.job.monitored import require_schedule
from psfleet.job.optimizer import Optimizer
from psfleet.job.problems import problem
from psfleet.job.sections import Checkpoint, Deadlines, Device, Evaluate, Fleet, Summaries, Train
from psfleet.job.update import Update, require_update

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
    optimizer: Optimizer = Field(description="Update rule and learning rate.")
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
        return self.update.quorum or self.fleet.workers

    @property
    def push_examples(self) -> int:
        """Number of examples in what a worker pushes at once."""
        return self.train.gradient_examples * self.update.round_steps

    @property
    def least_workers(self) -> int:
        """The smallest number of workers and spares that can make a step."""
        if self.update.is_in_graph:
            return self.fleet.replicas
        return self.quorum if self.update.has_quorum else 1

    @property
    def most_workers(self) -> int:
        """The largest number of workers and spares of a running fleet."""
        return self.fleet.replicas if self.update.is_in_graph else self.fleet.worker_limit

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        require_update(self)
        require_schedule(self)
        require_own_folders(self.kubernetes, self.container.mounts)
        if self.optimizer.name == "lamb" and self.fleet.ps > 1 and self.update.mode != "averaging":
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
    content = read_mapping(path, "job file", _loader(path.resolve().parent))
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


def read_mapping(path: Path, kind: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> dict[str, Any]:
    """Reads a YAML file whose content is a mapping.

    Args:
        path: The file.
        kind: What the file is, for messages.
        loader: Knows the tags of the file.

    Raises:
        UsageError: The file cannot be read.
        BadJobError: The content is no mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), loader)
    except OSError as error:
        raise UsageError(f"{kind} {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadJobError(f"{kind} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadJobError(f"{kind} {path} holds {type(content).__name__}, expected a mapping of fields")
    return content


def _loader(folder: Path) -> type[yaml.SafeLoader]:
    """A YAML loader that knows the tag `!path`: a path relative to a folder."""

    class Loader(yaml.SafeLoader):
        pass

    def path(loader: yaml.SafeLoader, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "!path needs a text", node.start_mark)
        return str(folder / loader.construct_scalar(node))

    Loader.add_constructor("!path", path)
    return Loader


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
    for override in overrides:
        _override(fields, override)
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


def _override(content: dict[str, Any], override: str) -> None:
    """Sets one field of a job file's content."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise UsageError(f"--set {override!r}: expected key=value")
    *sections, last = key.split(".")
    mapping = content
    for section in sections:
        inner = mapping.get(section)
        if inner is None:
            inner = mapping[section] = {}
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override!r}: {section} is not a section")
        mapping = inner
    try:
        mapping[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {override!r}: the value is not YAML") from error
