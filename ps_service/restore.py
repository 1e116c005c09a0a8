"""Reads the checkpoint that a shard starts from, with a deadline: a disk may never answer."""

from __future__ import annotations

from pathlib import Path

from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.manifest import Checkpoint, read_manifest
from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.tensors import read_shard
from psfleet.errors import StorageError
from psfleet.polling import run_within

SHARE = 0.9
"""Of the deadline of the chief's call: the answer, which names the folder, must arrive before."""


def read_checkpoint(folder: Path, plan: ShardPlan) -> tuple[Checkpoint, ShardContent]:
    """A checkpoint, and what of it belongs to a shard.

    Raises:
        BadJobError: The checkpoint does not match the layout.
        NoCheckpointError: The checkpoint cannot be read.
        StorageError: The disk does not answer. The thread that reads is abandoned.
    """
    secs = SHARE * plan.job.deadlines.start_secs

    def read() -> tuple[Checkpoint, ShardContent]:
        checkpoint = read_manifest(folder)
        return checkpoint, read_shard(checkpoint, plan.layout, plan.shard)

    try:
        return run_within(secs, read)
    except TimeoutError as error:
        raise StorageError(f"the disk has not answered for {secs:g} s to a read of {folder}") from error
