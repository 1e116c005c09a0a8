"""Measures between-graph against in-graph replication: milliseconds per sync step, and bytes through worker 0.

For each number of workers two fleets train in turn on this machine, with one ps. Compute is simulated: workers wait.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psfleet
from benchmarks.machine import machine_facts
from benchmarks.replication_chart import chart
from benchmarks.simulated.program import STEPS_FILE

PROGRAM = Path(__file__).parent / "simulated"
RESULTS = Path(__file__).parent / "results" / "replication.json"
PICTURE = Path(__file__).parents[1] / "docs" / "replication.svg"
WORKERS = (2, 4, 8)
KINDS = ("between_graph", "in_graph")
FEATURES = 100_000
BATCH_SIZE = 4
SETTLE_STEPS = 5
"""At the beginning of each round, which are not counted: the fleet opens its sessions again."""
CALL_SECS = 300.0


def main() -> int:
    """Parses the command line, measures, prints the table, and writes figures and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of workers (default 2 4 8)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each fleet (default 5)")
    parser.add_argument("--steps", type=int, default=20, help="counted steps of a round (default 20)")
    parser.add_argument("--wait-ms", type=int, default=100, help="simulated compute of a step (default 100)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for every figure; others that it has are kept")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="SVG file")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Runs the finally blocks, which end the fleets.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    settings = {"wait_ms": args.wait_ms, "steps": args.steps, "parameters": FEATURES, "batch_size": BATCH_SIZE, "ps": 1}
    figures = kept(args.json, settings)
    for workers in args.workers:
        figures[workers] = measure(workers, args.rounds, args.steps, args.wait_ms)
    found = [figures[workers] for workers in sorted(figures)]
    for each in found:
        print(line(each))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"settings": settings, "figures": found}, indent=2) + "\n")
    args.picture.write_text(chart(found, args.wait_ms))
    return 0


def kept(file: Path, settings: Mapping[str, int]) -> dict[int, dict[str, Any]]:
    """What a file has from earlier runs with the same settings, by number of workers."""
    if not file.exists():
        return {}
    content = json.loads(file.read_text())
    return {each["workers"]: each for each in content["figures"]} if content["settings"] == settings else {}


def measure(workers: int, num_rounds: int, steps: int, wait_ms: int) -> dict[str, Any]:
    """The figures of one number of workers: of each round, and their medians."""
    facts = machine_facts()
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with fleet(KINDS[0], workers, wait_ms) as one, fleet(KINDS[1], workers, wait_ms) as other:
        for run in (one, other):
            trained(run, SETTLE_STEPS)
        for index in range(num_rounds):
            for kind, run in zip(KINDS, (one, other), strict=True):
                found = trained(run, SETTLE_STEPS + steps)
                rounds[kind].append(found)
                print(
                    f"round {index + 1}/{num_rounds}  {workers} workers  {kind:<13} {found['step_ms']:8.1f} ms  "
                    f"{found['client_bytes']:11,.0f} bytes  load {found['load']:.1f}",
                    flush=True,
                )
    medians = {
        kind: {name: statistics.median(found[name] for found in several) for name in several[0]}
        for kind, several in rounds.items()
    }
    ratio = medians[KINDS[1]]["step_ms"] / medians[KINDS[0]]["step_ms"]
    return {
        "workers": workers,
        "machine": facts,
        "median": medians,
        "in_graph_over_between_graph": ratio,
        "rounds": rounds,
    }


@contextmanager
def fleet(kind: str, workers: int, wait_ms: int) -> Iterator[psfleet.Run]:
    """A run that is held at step 0, with its processes; stopped at the end of the block."""
    job = {
        "name": f"bench-{kind.replace('_', '-')}",
        "program": "program:build",
        "options": {"shapes": [[FEATURES]], "wait_ms": wait_ms, "is_lent": True},
        # Bytes are counted by TCP.
        "fleet": {"ps": 1, "workers": workers, "unix_sockets": False},
        "update": {"replication": kind},
        "optimizer": {"name": "sgd", "learning_rate": 0.001},
        "train": {"steps": 1_000_000, "batch_size": BATCH_SIZE},
        "device": {"intra_op_threads": 1},
        "callbacks": ["program:Measurements"],
    }
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out:
        run = psfleet.start(job, out=out, program_folder=PROGRAM, paused=True)
        try:
            yield run
        finally:
            run.stop()
            run.wait(timeout_secs=CALL_SECS)


def trained(run: psfleet.Run, steps: int) -> dict[str, float]:
    """Trains some steps: the median step in milliseconds, bytes through worker 0 per step, and the machine's load."""
    last = run.train(steps).result(CALL_SECS)
    lines = [json.loads(line) for line in (run.folder / STEPS_FILE).read_text().splitlines()]
    counted = [each for each in lines if last - steps + SETTLE_STEPS <= each["step"] <= last]
    first, *others = counted
    return {
        "step_ms": 1000 * statistics.median(each["secs"] for each in counted),
        "client_bytes": (counted[-1]["bytes"] - first["bytes"]) / max(len(others), 1),
        "load": os.getloadavg()[0],
    }


def line(figure: Mapping[str, Any]) -> str:
    """A row of the table in docs/replication.md."""
    between, one = (figure["median"][kind] for kind in KINDS)
    times = f"{between['step_ms']:.0f} | {one['step_ms']:.0f} | {figure['in_graph_over_between_graph']:.2f}"
    sizes = " | ".join(f"{each['client_bytes'] / 1000:,.0f}" for each in (between, one))
    return f"| {figure['workers']} | {times} | {sizes} | {between['load']:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
