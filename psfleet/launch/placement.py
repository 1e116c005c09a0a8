"""The devices of operations, as TensorFlow logs them with `device.log_placement`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_LINE = re.compile(
    r"(?P<name>\S+): \((?P<kind>\w+)\): (?P<task>/job:\w+)/replica:\d+(?P<device>/task:\d+/device:\w+:\d+)"
)
"""A line of TensorFlow's log: an operation's name, its kind, and its device."""


@dataclass
class Placement:
    """The operations of one process on one device.

    Attributes:
        process: As in `psfleet logs`: ps-0, chief, worker-1.
        device: As TensorFlow names it.
        operations: The number of operations of each kind. One that several graphs have under one name counts once.
    """

    process: str
    device: str
    operations: Counter[str] = field(default_factory=Counter)


def placements(lines: Iterable[tuple[str, str]]) -> list[Placement]:
    """The operations by process and device, from TensorFlow's log lines about placement.

    Args:
        lines: Pairs of a process and a line of its log; all other lines are ignored.
    """
    found: dict[tuple[str, str], Placement] = {}
    seen: set[tuple[str, str, str]] = set()
    for process, line in lines:
        operation = _LINE.fullmatch(line.strip())
        if operation is None:
            continue
        device = operation["task"] + operation["device"]
        if (process, operation["name"], device) in seen:
            continue
        seen.add((process, operation["name"], device))
        row = found.setdefault((process, device), Placement(process, device))
        row.operations[operation["kind"]] += 1
    return [found[key] for key in sorted(found)]
