"""Writes RESULTS.md and its pictures from the results of all benchmarks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results import MEASURES, Comparison, Group, Result, Spread
from benchmarks.results_chart import chart

FOLDER = Path(__file__).parent
NAMES = ("sync_step", "accuracy", "variables", "profile", "links", "simulated", "tls", "memory", "serving")
"""The results that the page has, in its order."""
HEAD = """# Results

This page is generated from the files in [results](results) by the benchmarks, which
[docs/benchmarks.md](../docs/benchmarks.md) describes.
Each value is the median of all rounds, with the lowest and the highest. A ratio is that of the medians, with the lowest
and the highest ratio of a round.
"""


def publish(result: Result, folder: Path = FOLDER) -> None:
    """Writes the files of a result, and the page with all results of the folder."""
    results = folder / "results"
    result.write(results)
    (results / f"{result.name}.svg").write_text(chart(result.groups))
    (folder / "RESULTS.md").write_text(page(results))


def page(results: Path) -> str:
    """The Markdown document, from the files in a folder."""
    found = [each for name in NAMES if (each := Result.read(results, name)) is not None]
    return "\n".join([HEAD, *(section(each) for each in found)])


def section(result: Result) -> str:
    """One benchmark's part of the page."""
    picture = f"![Bars of the medians, lines from the lowest to the highest round](results/{result.name}.svg)"
    parts = [f"## {result.title}", result.text, picture]
    for group in result.groups:
        parts += [f"### {group.title}", "\n".join(table(group))]
        if ratios := ratio_table(group):
            parts.append("\n".join(ratios))
    if result.skipped:
        parts.append("\n".join(f"- Not measured: {each}" for each in result.skipped))
    facts = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    return "\n\n".join(
        [*parts, f"Machine and software: {facts}. Every figure: [{result.name}.json]({_file(result)}).\n"]
    )


def table(group: Group) -> list[str]:
    """A row for each contender, as Markdown."""
    measures = [name for name in MEASURES if any(group.spread(contender, name) for contender in group.rounds)]
    lines = [_row("contender", *(MEASURES[name] for name in measures)), _row(*["---"] * (1 + len(measures)))]
    for contender in group.rounds:
        lines.append(_row(contender, *(_shown(group.spread(contender, name)) for name in measures)))
    return lines


def ratio_table(group: Group) -> list[str]:
    """A row for each comparison whose contenders were measured, as Markdown; empty without one."""
    found = [(each, ratio) for each in group.comparisons if (ratio := group.ratio(each)) is not None]
    if not found:
        return []
    rows = [_row(_what(each), _shown(ratio), *_goal(each, ratio)) for each, ratio in found]
    return [_row("ratio", "value", "goal", "reached"), _row(*["---"] * 4), *rows]


def _what(comparison: Comparison) -> str:
    return f"{comparison.contender} / {comparison.other}, {MEASURES[comparison.measure]}"


def _goal(comparison: Comparison, ratio: Spread) -> tuple[str, str]:
    if comparison.goal is None:
        return "", ""
    side = "at least" if comparison.is_minimum else "at most"
    return f"{side} {comparison.goal:g}", "yes" if comparison.is_met(ratio.median) else "no"


def _shown(spread: Spread | None) -> str:
    """A value with three significant digits, and its range."""
    if spread is None:
        return ""
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def number(value: float) -> str:
    """A number with at least three significant digits."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def _file(result: Result) -> str:
    return f"results/{result.name}.json"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
