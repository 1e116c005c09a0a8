"""What the chief asks a ps to build: its shard of a run, in one generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from psfleet.checkpoint.location import Folder
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
        job_digest: Digest of the sections that all processes have in common, see `psfleet.job.agreement`.
        hold_at: The step at which training is held when the generation starts; None: it is not.
    """

    run: str
    generation: int
    shard: int
    job: Job
    layout: Layout
    checkpoints_root: Folder | None
    update: TracedUpdate | None = None
    reductions: tuple[int, ...] = ()
    job_digest: str = ""
    # A chief that repeats its request may have another one: it sends that one later anyway.
    hold_at: int | None = field(default=None, compare=False)

    @property
    def optimizer(self) -> str:
        """The name of the optimizer in checkpoints."""
        return optimizer_name(self.job, self.update)

    def has_checkpoint(self, step: int) -> bool:
        """Whether the job has a checkpoint at a step."""
        job = self.job
        # The best checkpoint has the weights that were evaluated: checkpoints are evaluated, not a worker's copy.
        evaluated = job.evaluate.every_steps if job.evaluates_checkpoints else None
        is_regular = any(every is not None and step % every == 0 for every in (job.checkpoint.every_steps, evaluated))
        # The job's last step, too: if other ps have not received a stop, because the chief was killed, they train on.
        return is_regular or step == job.train.steps
