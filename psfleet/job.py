"""The job file: what is trained, by which fleet, and how; read and validated whole before TensorFlow is imported.

Every field carries its meaning and unit as its description; `docs/job-file.md` is compared with this schema by a test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from psfleet.errors import BadJobError, UsageError



def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value} is a truth value, expected a number")
    return value


Real = Annotated[float, Field(strict=False, allow_inf_nan=False), BeforeValidator(_no_truth_value)]
"""A finite number; YAML 1.1 reads `1e-3` as text, so text that is a number is taken too."""
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A part of the job file: unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Fleet(Section):
    """How many processes of each role."""

    ps: PositiveInt = Field(1, description="Number of parameter servers; each holds an equal share of the model.")
    workers: PositiveInt = Field(1, description="Number of workers; worker 0 is the chief.")
    spares: NonNegativeInt = Field(0, description="Workers beyond `workers`, so that no step waits for the slowest.")
    max_workers: PositiveInt | None = Field(
        None,
        description="How many workers and spares the fleet may grow to in the middle of a run; null: twice their sum.",
    )
    ps_addresses: list[str] | None = Field(
        None,
        description="`host:port` of parameter servers that run already (their control port is port + 1); they are "
        "used, not started and not ended. null: the launcher starts `ps` of them.",
    )
    max_restarts: NonNegativeInt = Field(
        10, description="How often the launcher starts one process again after it was killed or lost its peers."
    )

    @property
    def replicas(self) -> int:
        """Workers and spares together."""
        return self.workers + self.spares

    @property
    def slots(self) -> int:
        """How many worker indices there can be."""
        return self.max_workers or 2 * self.replicas

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        if self.max_workers is not None and self.max_workers < self.replicas:
            raise ValueError(f"max_workers is {self.max_workers}, expected at least workers + spares = {self.replicas}")
        if self.ps_addresses is not None:
            if len(self.ps_addresses) != self.ps:
                raise ValueError(f"ps_addresses has {len(self.ps_addresses)} entries, expected as many as ps = {self.ps}")
            for address in self.ps_addresses:
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal() or not 0 < int(port) < 65535:
                    raise ValueError(f"ps_addresses has {address!r}, expected host:port with port below 65535")
        return self


class Stale(Section):
    """Async mode: what becomes of a gradient whose staleness (updates applied since its weights were read) is high."""

    policy: Literal["apply", "lower_rate", "scale", "drop"] = Field(
        "apply",
        description="apply: as it is; lower_rate: learning rate / (1 + staleness); scale: gradients staler than "
        "`bound` are multiplied by bound / staleness; drop: gradients staler than `bound` are not applied.",
    )
    bound: NonNegativeInt = Field(
        10, description="Staleness in updates above which `scale` and `drop` act; `scale` needs at least 1."
    )

    @model_validator(mode="after")
    def _scalable(self) -> Stale:
        if self.policy == "scale" and self.bound < 1:
            raise ValueError("bound is 0, expected at least 1 with policy scale")
        return self


class Update(Section):
    """How gradients become updates."""

    mode: Literal["sync", "async"] = Field(
        "sync", description="sync: each update averages `quorum` gradients of one step; async: each gradient is an update."
    )
    quorum: PositiveInt | None = Field(
        None, description="sync: how many gradients make a step; null: as many as `fleet.workers`."
    )
    wire: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of gradients and parameters on the network; the ps always adds up in float32."
    )
    bucket_bytes: int = Field(
        64 * 1024 * 1024,
        ge=4096,
        multiple_of=64,
        description="Most bytes of parameters that travel as one tensor; each ps cuts its shard into equal buckets.",
    )
    stale: Stale = Field(default_factory=Stale, description="async: the policy for stale gradients.")
    warmup_steps: NonNegativeInt = Field(
        0, description="async: the first so many steps are made by the chief alone."
    )


class Constant(Section):
    """The same learning rate at every step."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


class Exponential(Section):
    """learning_rate * decay_rate ** (step / decay_steps)."""

    kind: Literal["exponential"]
    decay_steps: PositiveInt = Field(description="Steps after which the rate has been multiplied by `decay_rate` once.")
    decay_rate: Positive = Field(description="The factor.")
    staircase: bool = Field(False, description="Whether the exponent is rounded down to a whole number.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


class Piecewise(Section):
    """learning_rate * factors[i], i being the number of boundaries that the step has passed."""

    kind: Literal["piecewise"]
    boundaries: list[PositiveInt] = Field(min_length=1, description="Ascending steps at which the factor changes.")
    factors: list[Positive] = Field(description="One factor more than boundaries.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")

    @model_validator(mode="after")
    def _matched(self) -> Piecewise:
        if len(self.factors) != len(self.boundaries) + 1:
            raise ValueError(f"factors has {len(self.factors)} entries, expected {len(self.boundaries) + 1}")
        if sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError(f"boundaries is {self.boundaries}, expected ascending steps")
        return self


class Cosine(Section):
    """Falls along half a cosine from learning_rate to learning_rate * final_factor over decay_steps."""

    kind: Literal["cosine"]
    decay_steps: PositiveInt = Field(description="Steps until the lowest rate is reached.")
    final_factor: NonNegative = Field(0.0, description="Lowest rate as a part of learning_rate.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


Schedule = Annotated[Constant | Exponential | Piecewise | Cosine, Field(discriminator="kind")]


class OptimizerBase(Section):
    """What every optimizer has."""

    learning_rate: Positive = Field(description="The rate before the schedule's factor.")
    schedule: Schedule = Field(default_factory=Constant, description="How the rate changes with the step.")
    clip_norm: Positive | None = Field(
        None, description="A worker's gradient is scaled down to this global norm before it is pushed; null: never."
    )


class Sgd(OptimizerBase):
    """w -= lr * g."""

    name: Literal["sgd"]


class Momentum(OptimizerBase):
    """v = momentum * v + g; w -= lr * v."""

    name: Literal["momentum"]
    momentum: Fraction = Field(0.9, description="The part of the old velocity that is kept.")
    nesterov: bool = Field(False, description="Whether the gradient is taken as if after the velocity's move.")


class Adam(OptimizerBase):
    """Kingma and Ba 2015, the formulation just before section 2.1 (epsilon hat), as tf.compat.v1.train.AdamOptimizer."""

    name: Literal["adam"]
    beta1: Fraction = Field(0.9, description="Decay of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay of the second moment.")
    epsilon: Positive = Field(1e-8, description="Added to the root of the second moment.")


class AdamW(OptimizerBase):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019) on every parameter: w -= lr * weight_decay * w."""

    name: Literal["adamw"]
    beta1: Fraction = Field(0.9, description="Decay of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay of the second moment.")
    epsilon: Positive = Field(1e-8, description="Added to the root of the second moment.")
    weight_decay: NonNegative = Field(0.01, description="The part of each weight that a step at rate 1 takes away.")


class Adagrad(OptimizerBase):
    """Duchi et al. 2011, as tf.compat.v1.train.AdagradOptimizer."""

    name: Literal["adagrad"]
    initial_accumulator: Positive = Field(0.1, description="Start of the sum of squared gradients.")


class RmsProp(OptimizerBase):
    """Tieleman and Hinton 2012, as tf.compat.v1.train.RMSPropOptimizer."""

    name: Literal["rmsprop"]
    decay: Fraction = Field(0.9, description="Decay of the mean of squared gradients.")
    momentum: Fraction = Field(0.0, description="The part of the old step that is kept.")
    epsilon: Positive = Field(1e-10, description="Added to the mean of squared gradients.")
    centered: bool = Field(False, description="Whether the squared mean of gradients is subtracted.")


class Ftrl(OptimizerBase):
    """McMahan et al. 2013, as tf.compat.v1.train.FtrlOptimizer."""

    name: Literal["ftrl"]
    learning_rate_power: Annotated[Real, Field(le=0)] = Field(-0.5, description="How the rate falls; -0.5 is 1 / sqrt.")
    initial_accumulator: NonNegative = Field(0.1, description="Start of the sum of squared gradients.")
    l1: NonNegative = Field(0.0, description="Strength of the L1 penalty.")
    l2: NonNegative = Field(0.0, description="Strength of the L2 penalty.")


Optimizer = Annotated[
    Sgd | Momentum | Adam | AdamW | Adagrad | RmsProp | Ftrl, Field(discriminator="name")
]


class Train(Section):
    """How long, and on which batches."""

    steps: PositiveInt = Field(description="The target: updates of the model after which the run is done.")
    batch_size: PositiveInt = Field(description="Examples in one worker's gradient.")
    shuffle: NonNegativeInt = Field(0, description="Size of the shuffle buffer in examples; 0: the order of the data set.")
    seed: NonNegativeInt = Field(0, description="Seed of initial weights, shuffling and dropout.")


class Evaluate(Section):
    """When the chief evaluates; it always does at the end if the program has evaluation data."""

    every_steps: PositiveInt | None = Field(None, description="Steps between evaluations; null: only at the end.")
    batch_size: PositiveInt | None = Field(None, description="Examples at a time; null: `train.batch_size`.")


class Checkpoint(Section):
    """When the ps write their parts, and how many checkpoints stay."""

    every_steps: PositiveInt | None = Field(None, description="Steps between checkpoints; null: not by steps.")
    every_secs: Positive | None = Field(None, description="Seconds between checkpoints; null: not by time.")
    keep: PositiveInt = Field(5, description="How many of the newest checkpoints stay on disk.")


class Summaries(Section):
    """What goes into `tensorboard/`."""

    every_steps: PositiveInt = Field(20, description="Steps between scalars.")
    histograms: bool = Field(False, description="Whether weights are written as histograms at each evaluation.")


class Device(Section):
    """Threads and accelerators of each process; null leaves TensorFlow's own default."""

    intra_op_threads: NonNegativeInt | None = Field(None, description="Threads within one operation.")
    inter_op_threads: NonNegativeInt | None = Field(None, description="Operations that run at once.")
    gpu_memory_fraction: Annotated[Real, Field(gt=0, le=1)] | None = Field(
        None, description="Part of a GPU's memory that a worker may take."
    )
    gpu_memory_growth: bool = Field(False, description="Whether GPU memory is taken as needed, not at once.")
    soft_placement: bool = Field(True, description="Whether an operation without a kernel for its device moves to the CPU.")
    log_placement: bool = Field(False, description="Whether each operation's device is written to the log.")


class Deadlines(Section):
    """How long each wait may take; at its end the wait is an error that names what it waited for."""

    start_secs: Positive = Field(180, description="From a process's start until the fleet trains.")
    step_secs: Positive = Field(60, description="One push, token and pull; then the worker looks at the fleet afresh.")
    slow_secs: Positive = Field(5, description="A step that waits this long is logged with the workers it waits for.")
    stall_secs: Positive = Field(600, description="No step anywhere in the fleet for this long ends the run.")
    stop_secs: Positive = Field(60, description="From Ctrl-C or SIGTERM to the end of every process.")


class Job(Section):
    """One training run."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        max_length=40,
        description="Names the run: lower-case letters, digits and dashes.",
    )
    program: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:callable` that returns the program; the job file's folder is searched first.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the callable.")
    fleet: Fleet = Field(default_factory=Fleet, description="Processes of each role.")
    update: Update = Field(default_factory=Update, description="How gradients become updates.")
    optimizer: Optimizer = Field(description="The update rule.")
    train: Train = Field(description="How long, and on which batches.")
    evaluate: Evaluate = Field(default_factory=Evaluate, description="When the chief evaluates.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="When to save, and how many to keep.")
    summaries: Summaries = Field(default_factory=Summaries, description="What goes into `tensorboard/`.")
    device: Device = Field(default_factory=Device, description="Threads and accelerators.")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="How long each wait may take.")

    @property
    def quorum(self) -> int:
        """Gradients that make one sync step."""
        return self.update.quorum or self.fleet.workers

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        if self.update.quorum is not None:
            if self.update.mode != "sync":
                raise ValueError(f"update.quorum is {self.update.quorum}, expected null in mode {self.update.mode}")
            if self.update.quorum > self.fleet.replicas:
                raise ValueError(
                    f"update.quorum is {self.update.quorum}, expected at most "
                    f"fleet.workers + fleet.spares = {self.fleet.replicas}"
                )
        if self.update.mode == "sync":
            if self.update.warmup_steps:
                raise ValueError(f"update.warmup_steps is {self.update.warmup_steps}, expected 0 in mode sync")
            if self.update.stale != Stale():
                raise ValueError("update.stale is set, expected only in mode async")
        return self

    def digest(self) -> str:
        """Eight hex digits that are equal for equal jobs."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Reads and validates a job file.

    Args:
        path: The YAML file.
        overrides: `key=value` texts; a dotted key reaches into sections, the value is YAML.

    Raises:
        UsageError: The file cannot be read, or an override is not `key=value`.
        BadJobError: The content is not a valid job; one line for each wrong field.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"job file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadJobError(f"job file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadJobError(f"job file {path} holds {type(content).__name__}, expected a mapping of fields")
    for override in overrides:
        _override(content, override)
    return parse_job(content, source=str(path))


def parse_job(content: Mapping[str, Any], source: str = "job") -> Job:
    """Validates a mapping as a job.

    Raises:
        BadJobError: One line for each wrong field: its name, its value and what was expected.
    """
    try:
        return Job.model_validate(dict(content))
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors())
        raise BadJobError(f"{source}: {problems}") from error


def _override(content: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise UsageError(f"--set {override!r}: expected key=value")
    *sections, last = key.split(".")
    at = content
    for section in sections:
        inner = at.get(section)
        if inner is None:
            inner = at[section] = {}
        if not isinstance(inner, dict):
            raise UsageError(f"--set {override!r}: {section} is not a section")
        at = inner
    try:
        at[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {override!r}: the value is not YAML") from error


def _problem(item: Mapping[str, Any]) -> str:
    """One validation error as `field is value: expectation`."""
    field = ".".join(_keys(item["loc"]))
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown key"
    if item["type"] == "missing":
        return f"{field}: missing, expected a value"
    if item["type"] == "value_error":
        return f"{field}: {message}" if field else message
    return f"{field} is {item['input']!r}: {message}"


def _keys(location: Sequence[str | int]) -> list[str]:
    """The keys of the file that lead to an error: pydantic adds the chosen member of a union behind its field."""
    keys: list[str] = []
    of_union = False
    for part in location:
        if of_union:
            of_union = False
            continue
        keys.append(str(part))
        of_union = part in ("optimizer", "schedule")
    return keys
