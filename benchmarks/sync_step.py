"""Measures milliseconds per synchronous step, of psfleet, the stock recipe of TensorFlow 1 and compute alone, in turn.

2 workers + 1 ps on this machine. The exit code is 0 whatever the figures are, and 1 when a contender failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import contenders
from benchmarks.children import ChildError
from benchmarks.figures import TARGETS, Figures, machine_facts
from benchmarks.workload import OPTIMIZERS, Workload

CONTENDERS = ("compute", "stock", "psfleet")


def main() -> int:
    """Parses the command line, measures, prints the table."""
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    facts = machine_facts()
    workloads = [Workload(hidden=hidden, optimizer=args.optimizer, steps=args.steps) for hidden in TARGETS]
    try:
        figures = measure(workloads, args.rounds, args.contenders, args.overrides)
    except ChildError as error:
        print(f"benchmark failed: {error}", file=sys.stderr)
        return 1
    print(
        f"\n2 workers + 1 ps, batch {workloads[0].batch_size} per worker, {args.optimizer}, "
        f"{args.rounds} rounds of {args.steps} steps"
    )
    for each in figures:
        print("\n".join(each.lines()))
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if args.json:
        result = {"machine": facts, "overrides": args.overrides, "figures": [each.to_dict() for each in figures]}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def measure(
    workloads: Sequence[Workload], num_rounds: int, names: Sequence[str], overrides: Sequence[str]
) -> list[Figures]:
    """Runs each contender once per round and size, in turn, so that a slow minute of the machine affects all."""
    runners: dict[str, Callable[[Workload], float]] = {
        "compute": contenders.compute,
        "stock": contenders.stock,
        "psfleet": functools.partial(contenders.psfleet, overrides=overrides),
    }
    figures = [Figures(workload) for workload in workloads]
    for index in range(num_rounds):
        for each in figures:
            for name in names:
                step_ms = runners[name](each.workload)
                each.add(name, step_ms)
                size = each.workload.num_parameters
                print(f"round {index + 1}/{num_rounds}  {size:>9,} parameters  {name:<8} {step_ms:8.2f} ms", flush=True)
    return figures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync_step", description=__doc__)
    parser.add_argument("--rounds", type=_at_least(1), default=5, help="runs of each contender and size (default 5)")
    parser.add_argument("--steps", type=_at_least(2), default=200, help="timed steps of a run (default 200)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help="the same for all")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="default: all")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="passed on to psfleet train"
    )
    parser.add_argument("--json", type=Path, help="file for every figure")
    return parser.parse_args()


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too few, expected at least {minimum}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
