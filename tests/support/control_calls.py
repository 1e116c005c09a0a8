"""Calls of a ps's control plane as a chief and a worker make them, with a model of one weight."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import write_initial
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.job.job import parse_job
from psfleet.layout import Layout, TensorSpec

BUILD_SECS = 30.0
_BEATS = itertools.count(1)
JOB: dict[str, Any] = {
    "name": "configured",
    "program": "program:build",
    "fleet": {"ps": 1, "workers": 2},
    "optimizer": {"name": "momentum", "learning_rate": 0.1},
    "train": {"steps": 50, "batch_size": 4},
}


def layout(*shape: int) -> Layout:
    """One weight of a shape."""
    return Layout.plan([TensorSpec("w", shape)], [], [], num_ps=1, bucket_bytes=4096)


LAYOUT = layout(7)


def initial(root: Path) -> Checkpoint:
    """A checkpoint of step 0."""
    return write_initial(
        root, LAYOUT, {"w": np.arange(7.0)}, run="run", generation=1, optimizer="momentum", extra={"job": JOB}
    )


def configure(client: PsClient, root: Path, **changes: Any) -> pb.ShardState:
    """Asks for a shard; with changes, for another one."""
    job = parse_job(JOB | changes.pop("job", {}))
    folder = root / "00000000-g1"
    plan: dict[str, Any] = {
        "shard": 0,
        "generation": 1,
        "job_json": job.model_dump_json(),
        "layout": LAYOUT,
        "checkpoint_folder": str(folder if folder.exists() else initial(root).folder),
        "checkpoints_root": str(root),
        "timeout_secs": BUILD_SECS,
    }
    return client.configure(**plan | changes)


def join(
    client: PsClient, process: str, index: int = -1, worker_limit: int = 4, cause: str = "", address: str = ""
) -> tuple[int, int]:
    """The index that a worker gets, and how many processes have had it; further calls are those of this worker."""
    request = pb.JoinRequest(index=index, worker_limit=worker_limit, cause=cause, process=process, address=address)
    reply = client.join(request)
    client.identify(pb.Member(index=reply.index, incarnation=reply.incarnation, process=process))
    return reply.index, reply.joins


def beat(client: PsClient, **report: Any) -> pb.ShardState:
    """Sends a heartbeat of the worker that joined last, with a number above those before."""
    fields: dict[str, Any] = {"beat": next(_BEATS), "generation": -1, "address": "worker:2222"}
    return client.heartbeat(pb.HeartbeatRequest(**fields | report))
