"""The only package of psfleet that imports TensorFlow: servers, and the resources that a ps and its workers share."""

from psfleet.tf.segments import keeps_previous, shard_segments
from psfleet.tf.shard_variables import (
    STALENESS_BUCKETS,
    ShardVariables,
    container_name,
    ps_device,
    secs_since,
    worker_job,
)

__all__ = [
    "STALENESS_BUCKETS",
    "ShardVariables",
    "container_name",
    "keeps_previous",
    "ps_device",
    "secs_since",
    "shard_segments",
    "worker_job",
]
