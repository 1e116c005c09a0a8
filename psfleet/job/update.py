"""The job file's `update` section: how gradients or weights of workers become updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from psfleet.job.fields import NonNegativeInt, PositiveInt, Section


class Stale(Section):
    """Modes async and ssp: stale gradients. Staleness is the number of updates applied since the weights were read."""

    policy: Literal["apply", "lower_rate", "scale", "drop"] = Field(
        "apply",
        description="apply: unchanged; lower_rate: with learning rate / (1 + staleness); scale: gradients staler than "
        "`bound` are multiplied by bound / staleness; drop: gradients staler than `bound` are discarded.",
    )
    bound: NonNegativeInt = Field(
        10, description="Staleness in updates above which `scale` and `drop` apply; `scale` requires at least 1."
    )

    @model_validator(mode="after")
    def _check_bound(self) -> Stale:
        if self.policy == "scale" and self.bound < 1:
            raise ValueError("bound is 0, expected at least 1 with policy scale")
        return self


class Update(Section):
    """How gradients are combined into updates."""

    mode: Literal["sync", "averaging", "ssp", "async"] = Field(
        "sync",
        description="sync: an update applies the average of `quorum` gradients of one step; averaging: each "
        "worker takes `local_steps` steps of its own with the job's optimizer, and then an update replaces weights, "
        "optimizer slots and floating point state by their averages over `quorum` workers; async: each gradient is "
        "applied on its own; ssp: as async, but a worker that is more than `bound` steps ahead of the slowest one "
        "waits for it.",
    )
    replication: Literal["between_graph", "in_graph"] = Field(
        "between_graph",
        description="sync, async. between_graph: each worker builds a graph of its own and is a client of the ps. "
        "in_graph: worker 0 builds one graph with a replica on the device of every worker, and is the only client; the "
        "other workers lend their devices, read their data, and are waited for: if one is lost, no worker trains until "
        "it is back.",
    )
    quorum: PositiveInt | None = Field(
        None,
        description="sync, averaging: number of workers whose gradients, or weights, are averaged in one update; null: "
        "`fleet.workers`.",
    )
    wire: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Data type of gradients and parameters on the network; the ps accumulate in float32. Slots "
        "and state are never rounded.",
    )
    bucket_bytes: int = Field(
        # Below MALLOC_MMAP_THRESHOLD_ of `psfleet.service.library_variables`.
        30 * 1024 * 1024,
        ge=4096,
        multiple_of=64,
        description="Maximum bytes of a bucket, the parameters that are sent as one tensor; each ps divides its "
        "shard into equal buckets. In mode sync a bucket is averaged, updated and pulled while the next ones are "
        "pushed. Where a link of about 1 Gbit/s is the limit, 1/16 of a shard shortens a step by up to 40 %; faster "
        "links gain nothing, because each bucket takes about 1 ms of CPU time of each worker and its ps. A tensor of "
        "32 MiB or more gets new memory in each step, which the kernel clears first. Of more than 64 buckets on all ps "
        "together several go at once. With `lamb`, embedding tables or several losses all buckets are sent at once.",
    )
    stale: Stale = Field(default_factory=Stale, description="async, ssp: policy for stale gradients.")
    local_steps: PositiveInt | None = Field(
        None,
        description="averaging, where it is required: steps of each worker between two averages. Steps of the job are "
        "these steps: `train.steps`, `checkpoint.every_steps` and `evaluate.every_steps` must be multiples of it, a "
        "run that resumes at another step makes its first round shorter, and a stop comes at the end of a round. The "
        "bytes on the network for each step are 1 / `local_steps` of those in mode sync, with `average_slots` "
        "times 1 + the number of the optimizer's slots (none for sgd, 2 for adam).",
    )
    average_slots: bool = Field(
        True,
        description="averaging: whether the optimizer's slots are averaged with the weights. If not, each worker keeps "
        "its own, which are in no checkpoint and end with its session: a run that resumes or loses a ps, and a worker "
        "that is restarted or opens another session, for example because a round took longer than its deadline, "
        "starts with initial slots. A warning in the worker's log says so.",
    )
    bound: NonNegativeInt | None = Field(
        None,
        description="ssp, where it is required: how many steps a worker may be ahead of the slowest one when it begins "
        "a step. 0: all workers make each step together, as in sync, but each gradient is an update of its own. Nobody "
        "waits for a worker that has sent no heartbeat for 5 s, has no session, or reads its first batch; one that "
        "comes back continues at the step of the slowest, or at its own if that is later. With several ps, the "
        "parameters on all but ps 0 are read before the wait, and may lack one more step of each worker.",
    )
    warmup_steps: NonNegativeInt = Field(
        0, description="async, ssp: number of initial steps that the chief trains alone."
    )

    @property
    def has_quorum(self) -> bool:
        """Whether a step is an update from a quorum of workers, and not from one gradient."""
        return self.mode in ("sync", "averaging")

    @property
    def is_in_graph(self) -> bool:
        """Whether worker 0 is the client of all replicas."""
        return self.replication == "in_graph"

    @property
    def round_steps(self) -> int:
        """Steps of each worker in one update."""
        return self.local_steps or 1

    def next_step(self, step: Any) -> Any:
        """The global step after the update that begins at a step; both are integers, or int64 tensors."""
        return (step // self.round_steps + 1) * self.round_steps

    def due_step(self, step: int) -> int:
        """The first global step at or after a step that a shard can have."""
        return -(-step // self.round_steps) * self.round_steps


def require_update(update: Update, replicas: int) -> None:
    """Refuses options of `update` that its mode does not have.

    Args:
        replicas: Number of workers and spares.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if update.quorum is not None:
        if not update.has_quorum:
            raise ValueError(f"update.quorum is {update.quorum}, expected null in mode {update.mode}")
        if update.quorum > replicas:
            raise ValueError(
                f"update.quorum is {update.quorum}, expected at most fleet.workers + fleet.spares = {replicas}"
            )
    if update.has_quorum:
        if update.warmup_steps:
            raise ValueError(f"update.warmup_steps is {update.warmup_steps}, expected 0 in mode {update.mode}")
        if update.stale != Stale():
            raise ValueError("update.stale is set, expected only in modes async and ssp")
    if (update.bound is None) == (update.mode == "ssp"):
        expected = "a number of steps" if update.mode == "ssp" else "null"
        shown = "null" if update.bound is None else update.bound
        raise ValueError(f"update.bound is {shown}, expected {expected} in mode {update.mode}")


def require_in_graph(update: Update, quorum: int, replicas: int, max_workers: int | None) -> None:
    """Refuses what one graph over all workers cannot do.

    Args:
        quorum: Number of gradients that are averaged in one sync step.
        replicas: Number of workers and spares.
        max_workers: `fleet.max_workers`.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if update.mode not in ("sync", "async"):
        raise ValueError(
            f"update.replication is in_graph, expected between_graph in mode {update.mode}: its workers make steps on "
            "their own"
        )
    if update.mode == "sync" and quorum < replicas:
        raise ValueError(
            f"update.replication is in_graph with {replicas} workers and spares and quorum {quorum}, expected no "
            "spares and update.quorum null in mode sync: one graph waits for all replicas"
        )
    if max_workers not in (None, replicas):
        raise ValueError(
            f"fleet.max_workers is {max_workers}, expected null with update.replication in_graph: the graph has "
            f"{replicas} replicas, and the fleet is not scaled"
        )


def require_rounds(update: Update, due: Mapping[str, int | None], schedule: str | None) -> None:
    """Refuses `local_steps` that do not belong to the mode, and what does not go with them.

    Args:
        due: By field of the job file, the step, or interval in steps, at which a round must end; None: there is none.
        schedule: Kind of the learning rate's schedule; None: there are several optimizers.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    steps = update.local_steps
    if update.mode != "averaging":
        if steps is not None:
            raise ValueError(f"update.local_steps is {steps}, expected null in mode {update.mode}")
        if not update.average_slots:
            raise ValueError(f"update.average_slots is false, expected true in mode {update.mode}")
        return
    if steps is None:
        raise ValueError("update.local_steps is null, expected a number of steps in mode averaging")
    for name, value in due.items():
        if value is not None and value % steps:
            raise ValueError(f"{name} is {value}, expected a multiple of update.local_steps = {steps}")
    if schedule == "plateau":
        raise ValueError(
            "optimizer.schedule.kind is plateau, expected another schedule in mode averaging: workers apply the "
            "optimizer, and a plateau schedule reduces the learning rate of the ps only"
        )
