"""What a shard starts from: read from a checkpoint's folder, or received from the chief."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.location import Folder, require_usable
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.part_tables import TABLE_PREFIX, ReceivedTables
from psfleet.checkpoint.parts import ShardContent, vector_layouts
from psfleet.checkpoint.tensors import read_shard
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, StorageError
from psfleet.polling import run_within

SHARE = 0.9
"""Of the deadline of the chief's call: the answer, which names the folder, must arrive before."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint's step and optimizer, and what of it belongs to a shard."""

    step: int
    optimizer: str
    content: ShardContent


def read_checkpoint(folder: Folder, plan: ShardPlan) -> Restored:
    """Reads what a shard starts from, with a deadline: a disk may never answer.

    Raises:
        BadJobError: The checkpoint does not match the layout, or this process may not read the store.
        NoCheckpointError: The checkpoint cannot be read.
        StorageError: The disk or the store does not answer. The thread that reads is abandoned.
    """
    secs = SHARE * plan.job.deadlines.start_secs

    def read() -> Restored:
        require_usable(plan.job)
        checkpoint = read_manifest(folder)
        return Restored(checkpoint.step, checkpoint.optimizer, read_shard(checkpoint, plan.layout, plan.shard))

    try:
        return run_within(secs, read)
    except TimeoutError as error:
        raise StorageError(
            f"{plan.job.checkpoint.store or 'the disk'} has not answered for {secs:g} s to a read of {folder}"
        ) from error


def receive(origin: pb.ShardOrigin, plan: ShardPlan, requests: Iterator[pb.RestoreRequest]) -> Restored:
    """Receives what a shard starts from; see `RestoreRequest` in control.proto.

    Raises:
        BadJobError: A range is not in a vector of the layout.
        LostPeerError: The stream ended early, or was changed on its way.
    """
    layouts = vector_layouts(plan.layout, tuple(origin.slots))
    vectors = {name: np.zeros(flat.shard_size, flat.unit_dtype) for name, flat in layouts.items()}
    tables = ReceivedTables(plan.layout.embeddings)
    digest = hashlib.sha256()
    for request in requests:
        if request.sha256:
            break
        if not (request.vector.startswith(TABLE_PREFIX) and tables.put(request.vector, request.start, request.data)):
            _put(vectors, request)
        digest.update(request.data)
    else:
        raise LostPeerError(f"the content of shard {plan.shard} at step {origin.step} has ended early")
    if request.sha256 != digest.hexdigest():
        found = digest.hexdigest()
        raise LostPeerError(
            f"the content of shard {plan.shard} at step {origin.step} has SHA-256 {found}, expected {request.sha256}"
        )
    try:
        rows = tables.contents()
    except ValueError as error:
        raise BadJobError(f"the content of shard {plan.shard} at step {origin.step}: {error}") from error
    content = ShardContent(
        parameters=vectors["parameter"],
        slots={slot: vectors[f"slot/{slot}"] for slot in origin.slots},
        scalars={name: np.asarray(value, np.float32) for name, value in origin.scalars.items()},
        state=vectors["state"],
        frozen=vectors["frozen"],
        tables=rows,
    )
    return Restored(origin.step, origin.optimizer, content)


def _put(vectors: dict[str, np.ndarray], request: pb.RestoreRequest) -> None:
    """Copies a range into its vector."""
    vector = vectors.get(request.vector)
    if vector is not None and len(request.data) % vector.itemsize == 0:
        values = np.frombuffer(request.data, vector.dtype)
        stop = request.start + len(values)
        if 0 <= request.start <= stop <= len(vector):
            vector[request.start : stop] = values
            return
    size = "no such vector" if vector is None else f"a vector of {len(vector)} elements of {vector.itemsize} bytes"
    raise BadJobError(
        f"{len(request.data)} bytes for {request.vector!r} from element {request.start} on, expected a range of its "
        f"elements: there is {size}"
    )
