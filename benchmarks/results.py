"""What a benchmark found: each round of each contender, their medians and ratios; as JSON, read and written."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEP = "step_ms"
MEASURES = {
    "step_ms": "ms per step",
    "mean_ms": "mean ms per step",
    "cpu_ms": "CPU ms per step",
    "tunnels_cpu_ms": "CPU ms of tunnels per step",
    "cpu_ms_per_gradient": "CPU ms per gradient",
    "ps_cpu_ms": "ps, CPU ms per step",
    "workers_cpu_ms": "workers, CPU ms per step",
    "memory_mb": "MB",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "queries_per_sec": "queries per second",
    "secs": "seconds",
    "steps": "steps",
    "cpu_secs": "CPU seconds",
}
"""What is measured, by name, with its unit."""


@dataclass(frozen=True)
class Comparison:
    """One contender divided by another.

    Attributes:
        goal: What the ratio should be at most, or with `is_minimum` at least; None: no goal.
        measure: What is divided.
    """

    contender: str
    other: str
    goal: float | None = None
    measure: str = STEP
    is_minimum: bool = False

    def is_met(self, ratio: float) -> bool | None:
        """Whether a ratio reaches the goal; None without a goal."""
        if self.goal is None:
            return None
        return ratio >= self.goal if self.is_minimum else ratio <= self.goal


@dataclass(frozen=True)
class Spread:
    """A median, and the lowest and highest of the rounds."""

    median: float
    low: float
    high: float


@dataclass
class Group:
    """Contenders that are measured in turn on one workload.

    Attributes:
        rounds: By contender its measures, one mapping from names to numbers for each round.
    """

    title: str
    comparisons: tuple[Comparison, ...] = ()
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, contender: str, measures: Mapping[str, float]) -> None:
        """Adds one round of a contender."""
        self.rounds.setdefault(contender, []).append(dict(measures))

    @property
    def main_measure(self) -> str:
        """What the first comparison is about."""
        return self.comparisons[0].measure if self.comparisons else STEP

    def spread(self, contender: str, measure: str) -> Spread | None:
        """One measure of a contender; None if it was not measured."""
        values = [each[measure] for each in self.rounds.get(contender, []) if measure in each]
        return Spread(statistics.median(values), min(values), max(values)) if values else None

    def ratio(self, comparison: Comparison) -> Spread | None:
        """The ratio of the medians, and the lowest and highest ratio of a round; None if one was not measured."""
        measure = comparison.measure
        one, other = (self.spread(name, measure) for name in (comparison.contender, comparison.other))
        if one is None or other is None or not other.median:
            return None
        pairs = zip(self.rounds[comparison.contender], self.rounds[comparison.other], strict=False)
        ratios = [first[measure] / second[measure] for first, second in pairs if second[measure]]
        return Spread(one.median / other.median, min(ratios), max(ratios))

    def to_dict(self) -> dict[str, Any]:
        """Everything in the group; medians and ratios are for readers of the file, and follow from the rounds."""
        names = {
            contender: sorted({name for each in found for name in each}) for contender, found in self.rounds.items()
        }
        medians = {
            contender: {name: spread.median for name in several if (spread := self.spread(contender, name))}
            for contender, several in names.items()
        }
        comparisons = []
        for each in self.comparisons:
            ratio = self.ratio(each)
            found = None if ratio is None else dataclasses.asdict(ratio)
            comparisons.append({**dataclasses.asdict(each), "ratio": found})
        return {"title": self.title, "medians": medians, "comparisons": comparisons, "rounds": self.rounds}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Group:
        """The inverse of `to_dict`."""
        fields = [{name: value for name, value in each.items() if name != "ratio"} for each in content["comparisons"]]
        return cls(content["title"], tuple(Comparison(**each) for each in fields), content["rounds"])


@dataclass
class Result:
    """One benchmark.

    Attributes:
        name: Of its files.
        text: What was measured, as a paragraph of Markdown.
        machine: Facts about the machine and the software, by name.
        skipped: What was not measured, and why, each in one line.
    """

    name: str
    title: str
    text: str
    machine: dict[str, str]
    groups: list[Group]
    skipped: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Writes NAME.json into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {**dataclasses.asdict(self), "groups": [group.to_dict() for group in self.groups]}
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, name: str) -> Result | None:
        """Reads NAME.json of a folder; None if there is none."""
        file = folder / f"{name}.json"
        if not file.exists():
            return None
        content = json.loads(file.read_text())
        return cls(**{**content, "groups": [Group.from_dict(each) for each in content["groups"]]})
