"""What a worker reads from the ps when it opens or resumes a session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SessionStart:
    """What a worker reads from the ps when it opens a session.

    Attributes:
        shards: Global step and final step of each shard, int64 `[num_ps, 2]`.
        numbers: Number of this worker's newest gradient in each segment of all shards, int64 `[num_segments]`; -1:
            none. In sync mode a gradient's number is its local step.
    """

    shards: np.ndarray
    numbers: np.ndarray

    @property
    def global_step(self) -> int:
        """The lowest global step among the shards."""
        return int(self.shards[:, 0].min())


def is_of_step(step: int, next_step: int, read: np.ndarray) -> bool:
    """Whether parameters are of one step and were not being updated; `read` is that of `StepGraph.pull`."""
    global_steps, started_steps = read[:, 0], read[:, 2]
    is_settled = bool((global_steps == started_steps).all())
    return is_settled and global_steps.min() == step and global_steps.max() <= next_step


def by_ps(read: np.ndarray, num_ps: int) -> np.ndarray:
    """Global step and final step of each shard, int64 `[num_ps, 2]`.

    They are the lowest global step of its segments, and the final step that the first one has.

    Args:
        read: Rows of `StepGraph.pull` or `StepGraph.steps`, which begin with the two steps of a segment; those of a ps
            follow one another.
    """
    if len(read) == num_ps:
        return read[:, :2]
    # Takes 20 us, in each step.
    rows = read.reshape(num_ps, -1, read.shape[1])
    return np.stack([rows[:, :, 0].min(axis=1), rows[:, 0, 1]], axis=1)
