"""The benchmark's figures: all measurements of a run, their medians and ratios, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata

from benchmarks.workload import Workload
from psfleet.service.cpu import num_usable_cpus

TARGETS = {128: 0.75, 1024: 0.85}
"""By hidden units: upper bound of psfleet's median step divided by stock's; README's section "Speed" has results."""


@dataclass
class Figures:
    """Median steps of one workload, one per round, in milliseconds, by contender."""

    workload: Workload
    rounds_ms: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: str, step_ms: float) -> None:
        """Adds one round's median step."""
        self.rounds_ms.setdefault(contender, []).append(step_ms)

    def ratio(self, contender: str, other: str) -> float | None:
        """Median of `contender` by median of `other`, or None if one of them was not measured."""
        if contender not in self.rounds_ms or other not in self.rounds_ms:
            return None
        return statistics.median(self.rounds_ms[contender]) / statistics.median(self.rounds_ms[other])

    def lines(self) -> list[str]:
        """The table of this workload."""
        workload = self.workload
        shape = f"784-{workload.hidden}-{workload.hidden}-10"
        lines = [f"MLP {shape}, {workload.num_parameters:,} parameters: ms per step, median of rounds (min - max)"]
        for contender, values in self.rounds_ms.items():
            low, high = min(values), max(values)
            lines.append(f"  {contender:<8} {statistics.median(values):8.2f}   ({low:.2f} - {high:.2f})")
        for other, note in (("stock", f"   target: at most {TARGETS[workload.hidden]}"), ("compute", "")):
            ratio = self.ratio("psfleet", other)
            if ratio is not None:
                lines.append(f"  {'psfleet / ' + other:<17} {ratio:8.2f}{note}")
        return lines

    def to_dict(self) -> dict[str, object]:
        """Everything in the table, and each round."""
        return {
            "workload": dataclasses.asdict(self.workload),
            "num_parameters": self.workload.num_parameters,
            "rounds_ms": self.rounds_ms,
            "median_ms": {name: statistics.median(values) for name, values in self.rounds_ms.items()},
            "psfleet_over_stock": self.ratio("psfleet", "stock"),
            "psfleet_over_compute": self.ratio("psfleet", "compute"),
            "target_over_stock": TARGETS[self.workload.hidden],
        }


def machine_facts() -> dict[str, str]:
    """Machine and time of the measurement; load is the mean number of running processes of the last minute."""
    tensorflow = metadata.packages_distributions()["tensorflow"][0]
    return {
        "cpus": str(num_usable_cpus()),
        "load": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": metadata.version(tensorflow),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
