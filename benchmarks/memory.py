"""Measures the memory of a ps: over its parameters and slots, and its growth with the number of steps.

1 ps and 2 workers as processes of this machine, started by `psfleet task`; Adam, which has two slots per parameter.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

from benchmarks.children import ChildError, Children
from benchmarks.contenders import START_SECS, Measures, python, run_secs
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.psfleet_run import WAITING_JOB, read_report, settings
from benchmarks.results import Comparison, Group
from benchmarks.sampling import sampling
from benchmarks.workload import NUM_WORKERS, Workload
from psfleet.processes.ports import free_addresses
from psfleet.report.schema import History

BYTES = 4 * (1 + 2)
"""Of a parameter with Adam's slots."""
BASE_SIZE = 1000
SAMPLE_SECS = 0.25
GROWTH = 1.02
"""What the memory at the end is at most, divided by that after a tenth of the steps."""
MEASURE = "memory_mb"
TEXT = """Memory of the ps that is resident and not of mapped files (`RssAnon` of Linux), with 2 workers and Adam.
Gradients are constants, and nothing is computed. `parameters and slots` is what the ps has to hold; the memory of a
ps with 1,000 parameters is that of Python and TensorFlow. While a checkpoint is made, which these runs do at their end
only, a ps needs the memory of parameters and slots once more."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("memory", __doc__, rounds=2)
    parser.add_argument("--steps", type=at_least(20), default=10_000, help="of the smaller model (default 10000)")
    parser.add_argument("--large-steps", type=at_least(20), default=300, help="of the larger model (default 300)")
    args = parser.parse_args()
    plans = [plan(1_863_690, args.steps), plan(25_557_032, args.large_steps)]
    return run("memory", "Memory of a ps", TEXT, plans, args.rounds, args.results)


def plan(size: int, steps: int) -> Plan:
    """The ps of one size of model."""
    base, needed = f"psfleet, {BASE_SIZE:,} parameters", "parameters and slots"
    early, late = f"psfleet, after {steps // 10:,} steps", f"psfleet, after {steps:,} steps"
    trained = Training(workload(size, steps))
    ways = [
        Contender(needed, lambda: {MEASURE: size * BYTES / 1e6}),
        Contender(base, Training(workload(BASE_SIZE, 100)).early),
        Contender(early, trained.early),
        Contender(late, trained.late),
    ]
    goals = (Comparison(late, early, GROWTH, MEASURE), Comparison(late, needed, None, MEASURE))
    return Plan(Group(f"{size:,} parameters", goals), ways)


def workload(size: int, steps: int) -> Workload:
    """What is trained: one variable."""
    return Workload(0, "adam", steps, warmup_steps=0, batch_size=4, shapes=((size,),))


class Training:
    """One training after the other; each gives two figures."""

    def __init__(self, trained: Workload) -> None:
        self._workload = trained
        self._late_mb: float | None = None

    def early(self) -> Measures:
        """Trains; the memory after a tenth of the steps."""
        self._late_mb = None
        early_mb, self._late_mb = train(self._workload)
        return {MEASURE: early_mb}

    def late(self) -> Measures:
        """The memory at the last step of the newest training."""
        if self._late_mb is None:
            raise ChildError("the training failed")
        return {MEASURE: self._late_mb}


def train(trained: Workload) -> tuple[float, float]:
    """Megabytes of the ps after a tenth of the steps, and at the last one."""
    ps, *workers = free_addresses(1 + NUM_WORKERS)
    flags = [part for setting in settings(trained) for part in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out, Children() as children:

        def task(role: str, index: int, *address: str) -> list[str]:
            place = ("--role", role, "--index", str(index), "--ps", ps.data, *address)
            return python("psfleet", "task", str(WAITING_JOB), *place, "--out", out, *flags)

        server = children.start("ps-0", task("ps", 0))
        started = [
            children.start(f"worker-{index}", task("worker", index, "--address", address.data))
            for index, address in enumerate(workers)
        ]
        memory = ResidentMemory(server.process.pid)
        with sampling(memory.sample, SAMPLE_SECS):
            for child in (*started, server):
                children.wait(child, "training", START_SECS + run_secs(trained))
        read_report(Path(out), trained.total_steps)
        points = History(Path(out) / History.FILE_NAME).curve()
        early = next(point for point in points if point.step >= trained.total_steps // 10)
        return memory.at(early.time), memory.at(points[-1].time)


class ResidentMemory:
    """Samples of the resident memory of a process, without that of mapped files."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._samples: list[tuple[float, float]] = []

    def at(self, moment: float) -> float:
        """Megabytes at the last sample up to a Unix time.

        Raises:
            ChildError: There is none.
        """
        before = bisect_right(self._samples, moment, key=lambda sample: sample[0])
        if before == 0:
            raise ChildError(f"no sample of the ps's memory up to {moment:.3f}")
        return self._samples[before - 1][1]

    def sample(self) -> None:
        """Adds a sample of now, if the process has not ended."""
        with suppress(OSError):
            resident, of_files = map(int, self._file.read_text().split()[1:3])
            # A process that has ended, and was not waited for, has none.
            if resident:
                self._samples.append((time.time(), (resident - of_files) * os.sysconf("SC_PAGE_SIZE") / 1e6))


if __name__ == "__main__":
    sys.exit(main())
