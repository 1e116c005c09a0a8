"""The job file's sections but for the optimizer: fleet, update, train, evaluate, checkpoint, summaries and the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from psfleet.job.fields import NonNegativeInt, Positive, PositiveInt, Real, Section


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
    def worker_limit(self) -> int:
        """How many worker indices there can be."""
        return self.max_workers or 2 * self.replicas

    def role(self, index: int) -> str:
        """What the worker of an index is called."""
        if index == 0:
            return "chief"
        return "worker" if index < self.workers else "spare"

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        if self.max_workers is not None and self.max_workers < self.replicas:
            raise ValueError(f"max_workers is {self.max_workers}, expected at least workers + spares = {self.replicas}")
        if self.ps_addresses is not None:
            if len(self.ps_addresses) != self.ps:
                raise ValueError(
                    f"ps_addresses has {len(self.ps_addresses)} entries, expected as many as ps = {self.ps}"
                )
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
        "sync",
        description="sync: each update averages `quorum` gradients of one step; async: each gradient is an update.",
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
    warmup_steps: NonNegativeInt = Field(0, description="async: the first so many steps are made by the chief alone.")


class Train(Section):
    """How long, and on which batches."""

    steps: PositiveInt = Field(description="The target: updates of the model after which the run is done.")
    batch_size: PositiveInt = Field(description="Examples in one worker's gradient.")
    shuffle: NonNegativeInt = Field(
        0, description="Size of the shuffle buffer in examples; 0: the order of the data set."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of initial weights, shuffling and dropout.")


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
    """Threads and accelerators of each process."""

    intra_op_threads: NonNegativeInt | None = Field(
        None,
        description="Threads within one operation; 0: TensorFlow's default, one for each core; null: with "
        "`psfleet train` the cores that it may use divided by the workers, at least one; in a container that is "
        "limited to fewer cores (`container.ps.cpus`, `container.worker.cpus`) its limit, rounded up; else as 0.",
    )
    inter_op_threads: NonNegativeInt | None = Field(
        None, description="Operations that run at once; 0 and null: as for `intra_op_threads`."
    )
    gpu_memory_fraction: Annotated[Real, Field(gt=0, le=1)] | None = Field(
        None, description="Part of a GPU's memory that a worker may take."
    )
    gpu_memory_growth: bool = Field(False, description="Whether GPU memory is taken as needed, not at once.")
    soft_placement: bool = Field(
        True, description="Whether an operation without a kernel for its device moves to the CPU."
    )
    log_placement: bool = Field(False, description="Whether each operation's device is written to the log.")


class Deadlines(Section):
    """How long each wait may take; at its end the wait is an error that names what it waited for."""

    start_secs: Positive = Field(180, description="For all ps to answer, and for each to build its shard.")
    step_secs: Positive = Field(60, description="One push, token and pull; then the worker looks at the fleet afresh.")
    slow_secs: Positive = Field(5, description="A step that waits this long is logged with the workers it waits for.")
    stall_secs: Positive = Field(600, description="No step anywhere in the fleet for this long ends the run.")
    stop_secs: Positive = Field(60, description="From Ctrl-C or SIGTERM to the end of every process.")
