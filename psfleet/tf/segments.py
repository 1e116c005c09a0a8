"""How a job divides the shards of its ps into segments, and what follows from their number."""

from __future__ import annotations

from collections.abc import Sequence

from psfleet.job.job import Job
from psfleet.layout import ALIGNMENT_BYTES, EmbeddingSpec, Layout, Losses, Specs
from psfleet.layout.segments import Segment, segments

MIN_MODEL_BYTES = 16 << 20
"""Of the parameters of a model in segments: below, the messages cost more than overlapping saves."""
MIN_SEGMENT_BYTES = 256 << 10
MAX_SEGMENTS = 16
"""Of a shard. The first push and the last pull overlap nothing: they are 1 / 16 of the bytes each way."""


def bucket_bytes(job: Job, parameters: Specs, losses: Losses, embeddings: Sequence[EmbeddingSpec]) -> int:
    """The most bytes of a bucket in the layout of a model, which is not planned yet: a multiple of 64."""
    layout = Layout.plan(parameters, [], [], job.fleet.ps, job.update.bucket_bytes, (), losses, embeddings)
    shard_bytes = layout.parameters.shard_size * 4
    if not has_segments(job, layout) or shard_bytes * layout.num_ps < MIN_MODEL_BYTES:
        return job.update.bucket_bytes
    of_segment = max(MIN_SEGMENT_BYTES, -(-shard_bytes // (MAX_SEGMENTS * ALIGNMENT_BYTES)) * ALIGNMENT_BYTES)
    return min(job.update.bucket_bytes, of_segment)


def has_segments(job: Job, layout: Layout) -> bool:
    """Whether each bucket of a model is a segment.

    In sync mode it is: it is averaged, updated and pulled while the workers push the next ones. The other modes have a
    single segment for each ps, and so have a model with embedding tables, whose rows belong to a whole gradient; a
    program with several losses, which sends the buckets of one; and Lamb, which needs whole tensors.
    """
    is_whole = layout.embeddings or layout.parameters.losses or job.rule.name == "lamb"
    return job.update.mode == "sync" and not is_whole


def shard_segments(job: Job, layout: Layout, shard: int) -> tuple[Segment, ...]:
    """The segments of a shard, in the graphs of its ps and of the workers."""
    return segments(layout.parameters, shard, of_each_bucket=has_segments(job, layout))


def keeps_previous(job: Job, num_segments: int) -> bool:
    """Whether each ps keeps the parameters before its last update.

    With several segments, a worker can die when only some of them have its gradient. Those are a step ahead of the
    others until the worker's successor repeats the gradient, which it computes on the parameters before their last
    update. If the quorum is smaller than the number of workers and spares, the others do not wait for that gradient.

    Args:
        num_segments: Of all ps together.
    """
    return job.update.has_quorum and num_segments > 1 and job.quorum == job.fleet.replicas
