"""Measures a checkpoint and a restore: over the control plane, and through a folder that the ps share with the chief.

The ps are processes of this machine with everything but TensorFlow: a checkpoint begins when its snapshot is read and
ends with its manifest, a restore ends when the shard's content is in memory. Each part is flushed to the disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.children import Children
from benchmarks.machine import machine_facts
from psfleet.addresses import Address
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, write_manifest
from psfleet.checkpoint.parts import PartRecord
from psfleet.checkpoint.store import write_initial
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import LostPeerError
from psfleet.job.job import Job, parse_job
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from worker_service.chief.disk import Disk
from worker_service.chief.part_fetcher import PartFetcher
from worker_service.chief.shard_content import sending

RUN = "benchmark"
START_SECS = 60.0
CALL_SECS = 120.0
POLL_SECS = 0.005


def main() -> int:
    """Parses the command line, measures, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="size of the model's parameters (default 100)")
    parser.add_argument("--ps", type=int, default=2, help="number of ps (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="checkpoints and restores of each kind (default 5)")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: that of temporary files)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-", dir=args.folder) as folder, Children() as children:
        addresses = free_addresses(args.ps)
        for shard, address in enumerate(addresses):
            children.start(f"ps-{shard}", [sys.executable, "-m", "benchmarks.checkpoint_ps", address.data])
        fleet = Fleet(addresses, Path(folder), args.megabytes * 1_000_000 // 4)
        secs: dict[str, list[float]] = {}
        for number in range(args.rounds):
            for way, is_shared in (("shared folder", True), ("control plane", False)):
                secs.setdefault(f"restore    {way}", []).append(timed(fleet.restore, is_shared))
                secs.setdefault(f"checkpoint {way}", []).append(timed(fleet.save, is_shared))
            print(f"round {number + 1}/{args.rounds}", flush=True)
    print(f"{args.megabytes} MB on {args.ps} ps, seconds: median (lowest to highest)")
    for name in sorted(secs):
        print(f"{name:<26} {statistics.median(secs[name]):6.3f} ({min(secs[name]):.3f} to {max(secs[name]):.3f})")
    print(", ".join(f"{name} {value}" for name, value in machine_facts().items()))
    return 0


def timed(call: Callable[[bool], object], is_shared: bool) -> float:
    """How long a call takes, in seconds."""
    start = perf_counter()
    call(is_shared)
    return perf_counter() - start


class Fleet:
    """The chief of some ps.

    Args of the constructor:
        root: The folder of the checkpoints.
        size: Number of parameters.
    """

    def __init__(self, addresses: Sequence[Address], root: Path, size: int) -> None:
        self._root = root
        self._layout = Layout.plan([TensorSpec("w", (size,))], [], [], len(addresses), bucket_bytes=64 * 1024 * 1024)
        self._job = _job(len(addresses))
        self._ps = [PsClient(address, RUN) for address in addresses]
        self._clients = ThreadPoolExecutor(len(addresses))
        self._generation, self._step = 0, 0
        for client in self._ps:
            self._join(client)
        values = {"w": np.random.default_rng(1).standard_normal(size, np.float32)}
        self._initial = write_initial(
            root, self._layout, values, run=RUN, generation=1, optimizer="sgd", extra={"job": {}}
        )

    def restore(self, is_shared: bool) -> None:
        """Restores the first checkpoint in a new generation."""
        self._generation += 1
        self._step = 0

        def restore(shard: int, client: PsClient) -> None:
            plan: dict[str, Any] = {
                "shard": shard,
                "generation": self._generation,
                "job_json": self._job.model_dump_json(),
                "layout": self._layout,
                "checkpoint_folder": str(self._initial.folder) if is_shared else "",
                "checkpoints_root": str(self._root) if is_shared else "",
                "timeout_secs": CALL_SECS,
            }
            if is_shared:
                client.configure(**plan)
                return
            with sending(self._initial, self._layout, shard, Disk()) as content:
                client.restore(origin=content.origin, ranges=content.ranges, **plan)

        list(self._clients.map(restore, range(len(self._ps)), self._ps))

    def save(self, is_shared: bool) -> Checkpoint:
        """Writes a checkpoint."""
        self._step += 1
        for client in self._ps:
            client.schedule_checkpoint(self._generation, self._step, stop=False)
        parts = wait_until(self._parts, CALL_SECS, "the parts", done=len, poll_secs=POLL_SECS)
        if not is_shared:
            self._fetch(parts)
        folder = checkpoint_folder(self._root, self._step, self._generation)
        records = [PartRecord(part.file, part.num_bytes, part.sha256) for part in parts]
        return write_manifest(
            folder, self._layout, records, run=RUN, step=self._step, generation=self._generation, optimizer="sgd",
            slots=(), extra={"job": {}},
        )  # fmt: skip

    def _parts(self) -> list[pb.SavedPart]:
        """Those of the present step; empty while one is missing."""
        states = [client.describe() for client in self._ps]
        parts = [part for state in states for part in state.parts if part.step == self._step]
        return parts if len(parts) == len(self._ps) else []

    def _fetch(self, parts: Sequence[pb.SavedPart]) -> None:
        ended = threading.Event()
        fetcher = PartFetcher(self._ps, self._root, Disk(), lambda generation, step, error: ended.set())
        fetcher.fetch(self._generation, self._step, parts)
        if not ended.wait(CALL_SECS) or not fetcher.fetch(self._generation, self._step, parts):
            sys.exit("benchmark failed: the parts were not fetched")
        for client in self._ps:
            client.release_part(self._generation, self._step)

    def _join(self, client: PsClient) -> None:
        def join() -> pb.JoinReply:
            return client.join(pb.JoinRequest(index=0, worker_limit=1, process="benchmark"))

        reply = wait_until(lambda: _attempt(join), START_SECS, f"the ps at {client.address.control}")
        assert reply is not None, "wait_until checked it"
        client.identify(pb.Member(index=0, incarnation=reply.incarnation, process="benchmark"))


def _attempt(call: Callable[[], pb.JoinReply]) -> pb.JoinReply | None:
    """What a call of a ps returns; None while the ps starts."""
    try:
        return call()
    except LostPeerError:
        return None


def _job(num_ps: int) -> Job:
    content = {
        "name": RUN,
        "program": "program:build",
        "fleet": {"ps": num_ps},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1_000_000, "batch_size": 1},
    }
    return parse_job(content)


if __name__ == "__main__":
    sys.exit(main())
