"""How a job divides the shards of its ps into segments, and what follows from their number."""

from __future__ import annotations

from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.layout.segments import Segment, segments

MAX_SEGMENTS = 64
"""In a worker's graph, or in that of all replicas; each ps has one at least. With 1,024 a worker built its graph for
minutes, and its session did not open within five, on two busy cores."""


def shard_segments(job: Job, layout: Layout, shard: int) -> tuple[Segment, ...]:
    """The segments of a shard, in the graphs of its ps and of the workers.

    In sync mode each bucket is one, or a few buckets if there are many: it is averaged, updated and pulled while the
    workers push the next ones. The other modes have a single segment, and so have a model with embedding tables, whose
    rows belong to a whole gradient; a program with several losses, which sends the buckets of one; and Lamb, which
    needs whole tensors.
    """
    parameters = layout.parameters
    is_whole = job.update.mode != "sync" or layout.embeddings or parameters.losses or job.rule.name == "lamb"
    num_replicas = job.fleet.replicas if job.update.replication == "in_graph" else 1
    return segments(parameters, shard, 1 if is_whole else max(1, MAX_SEGMENTS // (layout.num_ps * num_replicas)))


def keeps_previous(job: Job, num_segments: int) -> bool:
    """Whether each ps keeps the parameters before its last update.

    With several segments, a worker can die when only some of them have its gradient. Those are a step ahead of the
    others until the worker's successor repeats the gradient, which it computes on the parameters before their last
    update. If the quorum is smaller than the number of workers and spares, the others do not wait for that gradient.

    Args:
        num_segments: Of all ps together.
    """
    return job.update.has_quorum and num_segments > 1 and job.quorum == job.fleet.replicas
