"""Measures the memory of a ps: over its parameters and slots, and its growth with the number of steps.

1 ps and 2 workers as processes of this machine, started by `psfleet task`; Adam, which has two slots per parameter.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
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
from psfleet.report.history import History

BYTES = 4 * (1 + 2)
"""Of a parameter with Adam's slots."""
BASE_SIZE, BASE_STEPS = 1000, 20_000
SAMPLE_SECS = 0.25
GROWTH = 1.02
"""What the memory in the last tenth of the steps is at most, divided by that in the second tenth."""
MEASURE = "memory_mb"
RESIDENT = re.compile(r"^(?:RssAnon|RssShmem):\s*(\d+) kB$", re.MULTILINE)
"""In `/proc/PID/status`."""
TEXT = """Memory of the ps that is resident and not of files on disk (`RssAnon` and `RssShmem` of Linux), with 2 workers
and Adam. It includes what the ps shares with the workers of its machine, their own memory for replies, too.
Gradients are constants, and nothing is computed. The memory varies with the messages that are under way: a figure is
the median of four samples a second over a tenth of the steps. `parameters and slots` is what the ps has to hold; the
memory of a ps with 1,000 parameters is that of Python and TensorFlow. While a checkpoint is made, which these runs do
at their end only, a ps needs the memory of parameters and slots once more."""


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
    tenth = steps // 10
    early, late = f"psfleet, steps {tenth:,} to {2 * tenth:,}", f"psfleet, steps {9 * tenth:,} to {steps:,}"
    trained = Training(workload(size, steps))
    ways = [
        Contender(needed, lambda: {MEASURE: size * BYTES / 1e6}),
        Contender(base, Training(workload(BASE_SIZE, BASE_STEPS)).early),
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
        """Trains; the memory in the second tenth of the steps."""
        self._late_mb = None
        early_mb, self._late_mb = train(self._workload)
        return {MEASURE: early_mb}

    def late(self) -> Measures:
        """The memory in the last tenth of the newest training."""
        if self._late_mb is None:
            raise ChildError("the training failed")
        return {MEASURE: self._late_mb}


def train(trained: Workload) -> tuple[float, float]:
    """Megabytes of the ps in the second and in the last tenth of the steps, without the checkpoint at the end."""
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
        tenth = trained.total_steps // 10
        # When the last step has a point, its checkpoint has begun.
        times = {point.step: point.time for point in points if point.step < trained.total_steps}
        return memory.between(times, tenth, 2 * tenth), memory.between(times, 9 * tenth, trained.total_steps)


class ResidentMemory:
    """Samples of the resident memory of a process, without that of mapped files on disk."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/status")
        self._samples: list[tuple[float, float]] = []

    def between(self, times: Mapping[int, float], first: int, last: int) -> float:
        """Megabytes, the median of the samples between two steps.

        Args:
            times: Unix times of some steps.

        Raises:
            ChildError: There is no sample.
        """
        within = [moment for step, moment in times.items() if first <= step <= last]
        begin, end = min(within, default=math.inf), max(within, default=-math.inf)
        found = [value for at, value in self._samples if begin <= at <= end]
        if not found:
            raise ChildError(f"no sample of the ps's memory between the steps {first} and {last}: train more")
        return statistics.median(found)

    def sample(self) -> None:
        """Adds a sample of now, if the process has not ended."""
        with suppress(OSError):
            found = RESIDENT.findall(self._file.read_text())
            # A process that has ended, and was not waited for, has none.
            if found:
                self._samples.append((time.time(), sum(map(int, found)) * 1024 / 1e6))


if __name__ == "__main__":
    sys.exit(main())
