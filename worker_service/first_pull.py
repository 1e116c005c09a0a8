"""What a worker reads at the start of a session: parameters and state of one step, from all ps."""

from __future__ import annotations

import time

import numpy as np
import tensorflow.compat.v1 as v1

from psfleet.errors import LostPeerError
from psfleet.job.job import Job
from psfleet.tf import keeps_previous
from worker_service.in_graph.merged import ReplicaStep
from worker_service.session_start import SessionStart, by_ps, is_of_step
from worker_service.step import StepGraph

NEWEST = np.iinfo(np.int64).max
"""Reads the newest parameters and rows: no shard is ahead of this step."""


def pull_one_step(
    session: v1.Session,
    step: StepGraph | ReplicaStep,
    job: Job,
    options: v1.RunOptions,
    shard_steps: np.ndarray | None = None,
) -> SessionStart:
    """Copies parameters and state: those of the lowest global step if the shards keep them, else the newest.

    A segment of a shard can be a step ahead of another one, whose update waits for this worker's gradient; it keeps
    what it had before that step. Segments that advance by more do not wait for this worker, because the fleet has more
    workers than its quorum. A copy during which a segment was updated is discarded, and another one made.

    Args:
        options: Of each call.
        shard_steps: That were read just now, see `StepGraph.shard_steps`; None: they are read.

    Raises:
        LostPeerError: The shards were not at one step within `deadlines.step_secs`.
        tf.errors.OpError: A peer was lost; see `translate_errors`.
    """
    next_step, secs = job.update.next_step, job.deadlines.step_secs
    deadline = time.monotonic() + secs
    first = None
    while True:
        if (steps := shard_steps) is None:
            steps = np.asarray(session.run(step.shard_steps, options=options))
        lowest = int(steps[:, 0].min())
        first = lowest if first is None else first
        is_awaited = keeps_previous(job, len(steps)) and lowest <= next_step(first)
        feeds = {step.local_step: lowest if is_awaited else NEWEST}
        read = session.run(step.pull, feeds, options=options)
        if not is_awaited or is_of_step(lowest, next_step(lowest), read):
            return SessionStart(by_ps(read, job.fleet.ps), steps[:, 1])
        if time.monotonic() > deadline:
            raise LostPeerError(
                f"the shards' global steps are {read[:, 0].tolist()} with updates to {read[:, 2].tolist()} in "
                f"progress after {secs:g} s, expected at most one step apart and no update"
            )
        shard_steps = None
