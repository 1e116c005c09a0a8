"""What the chief asks a ps to build: its shard of a run, in one generation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf.traced_update import TracedUpdate, optimizer_name


@dataclass(frozen=True)
class ShardPlan:
    """What a shard is built from; two equal plans build the same shard.

    Attributes:
        checkpoints_root: Where parts are written; None: they are held for the chief.
        update: Of the program's own optimizer.
        reductions: The steps from which on the learning rate is reduced, as far as they are known when the generation
            starts.
    """

    run: str
    generation: int
    shard: int
    job: Job
    layout: Layout
    checkpoints_root: Path | None
    update: TracedUpdate | None = None
    reductions: tuple[int, ...] = ()

    @property
    def optimizer(self) -> str:
        """The name of the optimizer in checkpoints."""
        return optimizer_name(self.job, self.update)
