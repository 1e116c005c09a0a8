"""The contenders of the benchmark of embedding tables: each starts a fleet, and trains it round by round."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psfleet
from benchmarks.children import Children
from benchmarks.lookups.program import IDS, NAME, STEPS_FILE
from benchmarks.loopback import loopback_bytes
from benchmarks.parameter_servers import RATE
from psfleet.processes.ports import free_addresses

PROGRAM = Path(__file__).parent / "lookups"
WORKERS = 2
SETTLE_STEPS = 5
"""At the beginning of a round, whose times do not count: the fleet opens its sessions again."""
CALL_SECS = 300.0
Round = Callable[[], dict[str, float]]
"""Trains a round: `step_ms`, the mean step of a worker; `bytes` of a step of a worker; `ps_mb`, memory of the ps."""


class Contender(Protocol):
    """Something that trains the model of `benchmarks.lookups`."""

    def started(self, steps: int) -> AbstractContextManager[Round]:
        """Context manager for a fleet; ends it.

        Args:
            steps: Of each worker in a round.
        """
        ...

    def facts(self) -> dict[str, object]:
        """What it is: `contender`, `rows` of the table, and `touched` rows of a worker's batch."""
        ...


@dataclass(frozen=True)
class Sized:
    """The model of a contender.

    Attributes:
        title: Of the contender.
        rows: Of the table.
        batch_size: Of each worker.
    """

    title: str
    rows: int
    batch_size: int

    def facts(self) -> dict[str, object]:
        """See `Contender`."""
        return {"contender": self.title, "rows": self.rows, "touched": self.batch_size * IDS}

    def __str__(self) -> str:
        return f"{self.title}, {self.rows:,} rows, batch {self.batch_size}"


@dataclass(frozen=True)
class PsfleetFleet(Sized):
    """A psfleet run.

    Attributes:
        mode: Of updates.
        has_table: Whether the rows are on the ps; otherwise the table is a dense variable.
    """

    mode: str = "sync"
    has_table: bool = True

    @contextmanager
    def started(self, steps: int) -> Iterator[Round]:
        """See `Contender`."""
        job = {
            "name": "bench-tables",
            "program": "program:build",
            "options": {"rows": self.rows, "batch_size": self.batch_size},
            # Bytes are counted by the network device of loopback.
            "fleet": {"ps": 1, "workers": WORKERS, "unix_sockets": False},
            "update": {"mode": self.mode},
            "optimizer": {"name": "sgd", "learning_rate": RATE},
            "train": {"steps": 1_000_000, "batch_size": self.batch_size},
            "tables": {NAME: {"rows": self.rows}} if self.has_table else {},
            "device": {"intra_op_threads": 1},
            "callbacks": ["program:Measurements"],
        }
        with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out:
            run = psfleet.start(job, out=out, program_folder=PROGRAM, paused=True)
            try:
                yield lambda: self._round(run, steps)
            finally:
                run.stop()
                run.wait(timeout_secs=CALL_SECS)

    def _round(self, run: psfleet.Run, steps: int) -> dict[str, float]:
        """Counts what twice as many steps send more: so what a round sends once does not count."""
        began = loopback_bytes()
        self._trained(run, steps)
        between = loopback_bytes()
        times = self._trained(run, 2 * steps)
        num_bytes = (loopback_bytes() - between) - (between - began)
        while not times:
            times = self._trained(run, 2 * steps)
        memory = resident_bytes(find_process(run.folder / "logs" / "ps-0.log"))
        step_ms = 1000 * statistics.fmean(times)
        return {"step_ms": step_ms, "bytes": num_bytes / steps / WORKERS, "ps_mb": memory / 1e6}

    def _trained(self, run: psfleet.Run, steps: int) -> list[float]:
        """Trains; seconds of the chief's steps: in async mode none if the other worker has opened its session first."""
        # In async mode a step is the gradient of one worker.
        made = steps * (WORKERS if self.mode == "async" else 1)
        last = run.train(made).result(CALL_SECS)
        file = run.folder / STEPS_FILE
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [each["secs"] for each in lines if last - made < each["step"] <= last][SETTLE_STEPS:]


@dataclass(frozen=True)
class ParameterServers(Sized):
    """TensorFlow 2's `ParameterServerStrategy`, with a ClusterCoordinator."""

    @contextmanager
    def started(self, steps: int) -> Iterator[Round]:
        """See `Contender`."""
        addresses = [address.data for address in free_addresses(2 + WORKERS)]
        cluster = {"ps": addresses[:1], "worker": addresses[1:-1], "chief": addresses[-1:]}
        command = [sys.executable, "-m", "benchmarks.parameter_servers", "--cluster", json.dumps(cluster)]
        sizes = ["--rows", str(self.rows), "--batch-size", str(self.batch_size), "--steps", str(steps)]
        with Children() as children:
            ps = children.start("ps-0", [*command, "--role", "ps"])
            for index in range(WORKERS):
                children.start(f"worker-{index}", [*command, "--role", "worker", "--index", str(index)])
            chief = children.start("chief", [*command, "--role", "chief", *sizes])
            children.receive(chief, "the model", CALL_SECS)

            def train() -> dict[str, float]:
                children.send(chief, "go")
                began = loopback_bytes()
                step_ms = float(children.receive(chief, "step times", CALL_SECS)["step_ms"])
                num_bytes = (loopback_bytes() - began) / steps / WORKERS
                return {"step_ms": step_ms, "bytes": num_bytes, "ps_mb": resident_bytes(ps.process.pid) / 1e6}

            train()
            yield train


def find_process(log: Path) -> int:
    """The service whose stdout is a file; 0 if there is none."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        # A process may have ended by now.
        with suppress(OSError):
            if Path("/proc", name, "fd", "1").resolve() == log.resolve():
                found.append(int(name))
    return max(found, key=resident_bytes, default=0)


def resident_bytes(pid: int) -> int:
    """Anonymous memory of a process, without the files that it maps; 0 if it has ended."""
    with suppress(OSError):
        for line in Path("/proc", str(pid), "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
