"""Measures embedding tables: time and bytes of a step, and memory of the ps, by rows of the table and rows of a batch.

2 workers + 1 ps as processes of this machine, in a network namespace of their own: see `benchmarks.loopback`. The
contenders of a group train in turn. Peers are the same model with a dense layer, and TensorFlow 2's
`ParameterServerStrategy`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.loopback import enter_namespace
from benchmarks.machine import machine_facts
from benchmarks.table_contenders import Contender, ParameterServers, PsfleetFleet

RESULTS = Path(__file__).parent / "results" / "tables.json"
SMALL, LARGE = 10_000, 10_000_000
BATCH_SIZE = 64
GROUPS: dict[str, list[Contender]] = {
    "sync": [
        PsfleetFleet("tables", SMALL, BATCH_SIZE),
        PsfleetFleet("tables", LARGE, BATCH_SIZE),
        PsfleetFleet("dense layer", SMALL, BATCH_SIZE, has_table=False),
    ],
    "async": [
        PsfleetFleet("tables", SMALL, BATCH_SIZE, mode="async"),
        PsfleetFleet("tables", LARGE, BATCH_SIZE, mode="async"),
        ParameterServers("ParameterServerStrategy", SMALL, BATCH_SIZE),
        ParameterServers("ParameterServerStrategy", LARGE, BATCH_SIZE),
    ],
    "sync, rows of a batch": [PsfleetFleet("tables", LARGE, batch_size) for batch_size in (16, 64, 256)],
}
"""The first contender of a group is that to which the others are compared."""


def main(arguments: Sequence[str]) -> int:
    """Parses the command line, measures, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="counted steps of a round (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender (default 5)")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="default: all")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for every figure")
    args = parser.parse_args(arguments)
    if args.steps < 1 or args.rounds < 1:
        parser.error(f"--steps is {args.steps} and --rounds {args.rounds}, expected at least 1")
    enter_namespace("benchmarks.tables", arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Runs the finally blocks, which end the fleets.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    figures = {group: measure(group, args.rounds, args.steps) for group in args.groups}
    for group, rows in figures.items():
        head = f"| {group} | rows | rows of a batch | ms per step | ratio | bytes per step | MB of the ps |"
        print("", head, "|---|---|---|---|---|---|---|", *[line(row) for row in rows], sep="\n")
    content = {"steps": args.steps, "rounds": args.rounds, "machine": machine_facts(), "groups": figures}
    args.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0


def measure(group: str, num_rounds: int, steps: int) -> list[dict[str, object]]:
    """The figures of a group: medians of the rounds, and each round."""
    contenders = GROUPS[group]
    rounds: list[list[dict[str, float]]] = [[] for _ in contenders]
    with ExitStack() as stack:
        running = [stack.enter_context(each.started(steps)) for each in contenders]
        for index in range(num_rounds):
            for contender, train, found in zip(contenders, running, rounds, strict=True):
                found.append({**train(), "load": os.getloadavg()[0]})
                text = ", ".join(f"{name} {value:,.1f}" for name, value in found[-1].items())
                print(f"round {index + 1}/{num_rounds}  {group}: {contender}: {text}", flush=True)
    medians = [{name: statistics.median(each[name] for each in found) for name in found[0]} for found in rounds]
    return [
        {
            **contender.facts(),
            **median,
            "ratio": median["step_ms"] / medians[0]["step_ms"],
            "rounds": found,
        }
        for contender, median, found in zip(contenders, medians, rounds, strict=True)
    ]


def line(row: dict[str, object]) -> str:
    """A row of the table in docs/tables.md."""
    return (
        f"| {row['contender']} | {row['rows']:,} | {row['touched']:,} | {row['step_ms']:.1f} | {row['ratio']:.2f} | "
        f"{row['bytes']:,.0f} | {row['ps_mb']:,.0f} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
