"""The fields of a job file.

The description of each field is its documentation: `docs/job-file.md` is generated from this schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from psfleet.job.callback import CallbackEntry
from psfleet.job.container import Container
from psfleet.job.fields import Options, Section
from psfleet.job.fleet import Fleet
from psfleet.job.input import Input
from psfleet.job.kubernetes import Kubernetes
from psfleet.job.losses import LossName
from psfleet.job.monitored import Monitored
from psfleet.job.optimizer import AnyOptimizer, Optimizer, Schedule
from psfleet.job.sections import Checkpoint, Deadlines, Device, Evaluate, Summaries, Train
from psfleet.job.tables import Tables
from psfleet.job.update import Update

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
"""Names of jobs: they are part of host names, and of names in Docker and Kubernetes."""
MAX_NAME = 40
"""Length of a name in characters."""


class JobFields(Section):
    """The sections of a job, and what follows from them."""

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
    tables: Tables = Field(
        default_factory=dict,
        description="Embedding tables whose rows are on the ps, by the paths of their Keras layers, or the names of "
        "the variables of a graph program; see [above](#embedding-tables).",
    )
    train: Train = Field(description="Number of steps, and batches.")
    input: Input = Field(
        default_factory=Input, description="Where training examples are read, and how they become batches."
    )
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
    def evaluates_checkpoints(self) -> bool:
        """Whether checkpoints are evaluated, not the chief's copy: the best is kept, or it has no copy of all rows."""
        return self.checkpoint.best is not None or bool(self.tables)

    def batch_number(self, global_step: int) -> int:
        """The number of a worker's next batch, on parameters of a global step.

        Without a quorum each worker counts its own batches; the number is that of one that is as fast as the others.
        """
        return global_step if self.update.has_quorum else global_step // self.fleet.replicas

    @property
    def push_examples(self) -> int:
        """Number of examples in what a worker pushes at once."""
        return self.train.gradient_examples * self.update.round_steps

    @property
    def round_secs(self) -> float:
        """Until a step is complete, in averaging mode a round: `deadlines.step_secs` for each of its steps."""
        return self.deadlines.step_secs * self.update.round_steps

    @property
    def least_workers(self) -> int:
        """The smallest number of workers and spares that can make a step, whichever they are.

        Each of the others can belong to another replica, which makes no step without it, or be a ps, too.
        """
        if self.update.is_in_graph or self.fleet.colocate:
            return self.fleet.processes
        least_replicas = self.quorum if self.update.has_quorum else 1
        return self.fleet.processes - (self.fleet.replicas - least_replicas)

    @property
    def most_workers(self) -> int:
        """The largest number of workers and spares of a running fleet."""
        is_fixed = self.update.is_in_graph or self.fleet.parts > 1 or self.fleet.colocate
        return self.fleet.processes if is_fixed else self.fleet.worker_limit

    @property
    def most_loaders(self) -> int:
        """The largest number of loaders of a running fleet: beyond that of workers they have none to read for."""
        return self.input.num_loaders if self.input.is_dynamic else self.input.num_loaders and self.most_workers

    @property
    def summary_steps(self) -> int:
        """Steps between summaries: `summaries.every_steps`, in averaging mode up to the end of a round."""
        return self.update.due_step(self.summaries.every_steps)

    @property
    def monitored(self) -> dict[str, Monitored]:
        """The sections that watch a metric of the evaluations, by their names in the job file."""
        sections = {
            "evaluate.stop": self.evaluate.stop,
            "checkpoint.best": self.checkpoint.best,
            "optimizer.schedule": self.schedule,
        }
        return {name: section for name, section in sections.items() if isinstance(section, Monitored)}
