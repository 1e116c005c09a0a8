"""Runs contenders in turn, so that a slow minute of the machine affects all, and ends with the files of the result."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import ChildError
from benchmarks.machine import load, machine_facts
from benchmarks.peers.starting import why_missing
from benchmarks.results import Group, Result
from benchmarks.results_page import FOLDER, publish, ratio_table, table
from psfleet.errors import PsfleetError

ROUNDS = 5


@dataclass(frozen=True)
class Contender:
    """A way to train, on one workload.

    Attributes:
        run: Trains once, and returns the measures.
        environment: That of a peer; None: the project's own.
    """

    name: str
    run: Callable[[], Mapping[str, float]]
    environment: str | None = None


@dataclass(frozen=True)
class Plan:
    """A group, and the contenders that are measured in it."""

    group: Group
    contenders: Sequence[Contender]


def new_parser(module: str, description: str | None, rounds: int = ROUNDS) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks of this kind have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    parser.add_argument("--rounds", type=at_least(1), default=rounds, help=f"runs of each contender (default {rounds})")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of RESULTS.md (default: benchmarks)")
    return parser


def at_least(minimum: int) -> Callable[[str], int]:
    """A type of arguments: an integer that is not below a minimum."""

    def number(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too few, expected at least {minimum}")
        return value

    return number


def run(name: str, title: str, text: str, plans: Sequence[Plan], rounds: int, folder: Path) -> int:
    """Measures all plans, prints and writes the result; the exit code is 1 if a contender failed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Runs the finally blocks, which end the processes.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    environments = {each.environment for plan in plans for each in plan.contenders if each.environment}
    missing = {each: why for each in sorted(environments) if (why := why_missing(each))}
    skipped = [f"{', '.join(_names(plans, environment))}: {why}" for environment, why in missing.items()]
    for line in skipped:
        print(f"not measured: {line}", flush=True)
    facts = machine_facts(sorted(environments - missing.keys()))
    start = time.monotonic()
    left = [Plan(plan.group, [each for each in plan.contenders if each.environment not in missing]) for plan in plans]
    failures = measure(left, rounds)
    facts["load at the end"] = load()
    facts["minutes"] = f"{(time.monotonic() - start) / 60:.1f}"
    result = Result(name, title, text, facts, [plan.group for plan in plans], [*skipped, *failures])
    publish(result, folder)
    for plan in plans:
        print("\n".join(["", plan.group.title, *table(plan.group), *ratio_table(plan.group)]))
    print(", ".join(f"{fact} {value}" for fact, value in facts.items()))
    return 1 if failures else 0


def measure(plans: Sequence[Plan], rounds: int) -> list[str]:
    """Runs each contender once per round, in turn, and adds its measures to its group.

    Every other round is in the opposite order: what a contender leaves behind does not always meet the same one.

    A contender that fails has no further round in its group; returns a line for each of them.
    """
    failures: list[str] = []
    failed: set[tuple[str, str]] = set()
    for index in range(rounds):
        for plan in plans:
            for contender in plan.contenders if index % 2 == 0 else reversed(plan.contenders):
                if (plan.group.title, contender.name) in failed:
                    continue
                print(f"round {index + 1}/{rounds}  {plan.group.title}  {contender.name}", end="  ", flush=True)
                try:
                    measures = contender.run()
                except (ChildError, PsfleetError) as error:
                    print(f"failed: {error}", flush=True)
                    failed.add((plan.group.title, contender.name))
                    first = str(error).splitlines()[0]
                    failures.append(f"{contender.name}, {plan.group.title}, from round {index + 1} on: {first}")
                    continue
                plan.group.add(contender.name, measures)
                print("  ".join(f"{name} {value:.2f}" for name, value in measures.items()), flush=True)
    return failures


def _names(plans: Sequence[Plan], environment: str) -> list[str]:
    """The contenders of an environment, once each."""
    names = [each.name for plan in plans for each in plan.contenders if each.environment == environment]
    return list(dict.fromkeys(names))
