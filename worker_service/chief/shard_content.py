"""Reads what a ps restores, so that the chief can send it: the ps does not share the chief's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import ShardReader, open_shard
from psfleet.control import control_pb2 as pb
from psfleet.control.download import CHUNK_BYTES
from psfleet.layout import Layout
from worker_service.chief.disk import Disk


@dataclass(frozen=True)
class SentContent:
    """A shard's content as `PsClient.restore` takes it."""

    origin: pb.ShardOrigin
    ranges: Iterator[tuple[str, int, bytes]]


@contextmanager
def sending(checkpoint: Checkpoint, layout: Layout, shard: int, disk: Disk) -> Iterator[SentContent]:
    """Opens a checkpoint for one ps of a layout. The content is read while it is sent, in chunks of `CHUNK_BYTES`.

    Args:
        disk: Knows of each read, but not of the waits for the ps.

    Raises:
        BadJobError: The tensors of the layout differ from the checkpoint's.
        NoCheckpointError: The checkpoint cannot be read; also on iterating.
    """
    with disk.reading(checkpoint.folder):
        opened = open_shard(checkpoint, layout, shard)
        reader = opened.__enter__()
    try:
        origin = pb.ShardOrigin(
            step=checkpoint.step,
            optimizer=checkpoint.optimizer,
            slots=checkpoint.slots,
            scalars={name: float(value) for name, value in reader.scalars.items()},
        )
        yield SentContent(origin, _ranges(reader, checkpoint, disk))
    finally:
        opened.__exit__(None, None, None)


def _ranges(reader: ShardReader, checkpoint: Checkpoint, disk: Disk) -> Iterator[tuple[str, int, bytes]]:
    ranges = reader.ranges(CHUNK_BYTES)
    while True:
        with disk.reading(checkpoint.folder):
            found = next(ranges, None)
            data = b"" if found is None else found[2].tobytes()
        if found is None:
            return
        yield found[0], found[1], data
