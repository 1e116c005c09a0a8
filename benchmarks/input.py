"""Measures a step on data that take 10 ms an example: in memory, read by the workers themselves, and read by loaders.

2 workers + 1 ps as processes of this machine. The model waits instead of computing, and so does reading, so that the
processes do not compete for processors. Interleaved rounds; medians of their mean steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import psfleet
from psfleet.report.history import History

JOB = Path(__file__).parent / "reading" / "job.yaml"
THREADS = 8
"""Examples that one process reads at a time: 8 x 10 ms for a batch of 8 take 10 ms, a third of the model's step."""
INPUTS = {
    "in memory": ("{from: preload}", THREADS),
    "loaders": ("{from: loaders, loaders: 2}", THREADS),
    "worker": ("{from: worker}", THREADS),
    "worker, 1 thread": ("{from: worker}", 1),
}
"""The section `input` and the number of threads of each."""


def main(arguments: Sequence[str]) -> int:
    """Parses the command line, measures, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input", description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="steps of each run (default 120)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--json", type=Path, help="file for every figure")
    args = parser.parse_args(arguments)
    if args.steps < 2 or args.rounds < 1:
        parser.error(f"--steps is {args.steps} and --rounds {args.rounds}, expected at least 2 and 1")
    found: dict[str, list[float]] = {title: [] for title in INPUTS}
    for _ in range(args.rounds):
        for title, (source, threads) in INPUTS.items():
            found[title].append(step_ms(source, threads, args.steps))
    memory = statistics.median(found["in memory"])
    for title, times in found.items():
        median = statistics.median(times)
        print(f"{title:<18} {median:>7.1f} ms a step, {median / memory:.2f} of in memory", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def step_ms(source: str, threads: int, steps: int) -> float:
    """The mean step of one run after its first point of history, in milliseconds: a median hides pauses of epochs."""
    overrides = [f"input={source}", f"options.threads={threads}", f"train.steps={steps}"]
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder:
        report = psfleet.train(JOB, out=folder, overrides=overrides)
        if report.status != "done":
            sys.exit(f"benchmark failed: {report.error}")
        points = History(Path(folder) / History.FILE_NAME).readable()
    secs = sum(point.step_secs * (point.step - before.step) for before, point in pairwise(points))
    return secs * 1000 / (points[-1].step - points[0].step)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
