"""Counts what averaging mode saves: bytes on the network for each step of a worker, in sync and in averaging mode.

2 workers + 1 ps as processes of this machine, in a network namespace of their own, whose loopback device counts their
bytes, headers included. Needs Linux, root, `unshare` and `ip`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psfleet
from benchmarks.loopback import enter_namespace, loopback_bytes
from benchmarks.psfleet_run import JOB

WORKERS = 2
OPTIMIZERS = {"sgd": ("sgd", True), "adam": ("adam", True), "adam, own slots": ("adam", False)}
"""Name and `update.average_slots` of each."""
LOCAL_STEPS = (None, 2, 10)
"""None: sync mode."""


def main(arguments: Sequence[str]) -> int:
    """Parses the command line, counts, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.averaging_bytes", description=__doc__)
    parser.add_argument("--hidden", type=int, default=128, help="units of each hidden layer (default 128)")
    parser.add_argument("--steps", type=int, default=100, help="steps that are counted, a multiple of 10 (default 100)")
    parser.add_argument("--json", type=Path, help="file for every figure")
    args = parser.parse_args(arguments)
    if args.steps < 1 or args.steps % 10:
        parser.error(f"--steps is {args.steps}, expected a positive multiple of 10")
    enter_namespace("benchmarks.averaging_bytes", arguments)
    found: dict[str, dict[str, float]] = {}
    for title, (optimizer, average_slots) in OPTIMIZERS.items():
        rows = found[title] = {}
        for local_steps in LOCAL_STEPS:
            mode = "sync" if local_steps is None else f"averaging, local_steps {local_steps}"
            averaging = f"local_steps: {local_steps}, average_slots: {str(average_slots).lower()}"
            update = "{}" if local_steps is None else f"{{mode: averaging, {averaging}}}"
            rows[mode] = bytes_of_step(args.hidden, args.steps, optimizer, update)
            share = rows[mode] / rows["sync"]
            print(f"{title:<15} {mode:<26} {rows[mode]:>12,.0f} bytes a step, {share:.3f} of sync", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def bytes_of_step(hidden: int, steps: int, optimizer: str, update: str) -> float:
    """Bytes for one step of one worker: what a run of twice the steps sends more.

    So start, checkpoint and end of a run, which both have, do not count.
    """
    short, long = (run_bytes(hidden, number, optimizer, update) for number in (steps, 2 * steps))
    return (long - short) / steps / WORKERS


def run_bytes(hidden: int, steps: int, optimizer: str, update: str) -> int:
    """Bytes that loopback has counted during a run."""
    overrides = [
        f"fleet.workers={WORKERS}",
        "fleet.unix_sockets=false",
        f"options.hidden={hidden}",
        f"train.steps={steps}",
        f"optimizer={{name: {optimizer}, learning_rate: 0.001}}",
        f"update={update}",
    ]
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder:
        before = loopback_bytes()
        report = psfleet.train(JOB, out=folder, overrides=overrides)
        if report.status != "done":
            sys.exit(f"benchmark failed: {report.error}")
        return loopback_bytes() - before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
