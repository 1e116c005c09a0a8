"""The picture of the benchmark of replication: two bar charts, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = {"between_graph": "#4477aa", "in_graph": "#ee6677"}
WIDTH, HEIGHT, TOP, FLOOR = 720, 300, 60, 250
PANEL, MARGIN, BAR = 360, 40, 36


def chart(figures: Sequence[Mapping[str, Any]], wait_ms: int) -> str:
    """The SVG document.

    Args:
        figures: As `benchmarks.replication.measure` returns them.
        wait_ms: Simulated compute, drawn as a line.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" text-anchor="middle">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for index, (kind, colour) in enumerate(COLOURS.items()):
        x = WIDTH / 2 + (index - 1) * 130 + 20
        parts.append(f'<rect x="{x:g}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18:g}" y="18" text-anchor="start">{kind}</text>')
    parts += _panel(figures, 0, "step_ms", 1, "ms per step", wait_ms)
    parts += _panel(figures, PANEL, "client_bytes", 1000, "kB through worker 0 per step", None)
    return "\n".join([*parts, "</svg>\n"])


def _panel(
    figures: Sequence[Mapping[str, Any]], left: float, name: str, unit: float, title: str, limit: float | None
) -> list[str]:
    """One chart, with a group of bars for each number of workers."""
    highest = max(each["median"][kind][name] for each in figures for kind in COLOURS) / unit
    scale = (FLOOR - TOP) / highest
    parts = [f'<text x="{left + PANEL / 2:g}" y="42" font-weight="bold">{title}</text>']
    for index, figure in enumerate(figures):
        middle = left + MARGIN + (PANEL - MARGIN) * (index + 0.5) / len(figures)
        parts.append(f'<text x="{middle:g}" y="{FLOOR + 18}">{figure["workers"]} workers</text>')
        for side, (kind, colour) in enumerate(COLOURS.items()):
            value = figure["median"][kind][name] / unit
            x, y = middle + (side - 1) * BAR, FLOOR - value * scale
            size = f'width="{BAR - 4}" height="{value * scale:.1f}"'
            parts.append(f'<rect x="{x + 2:g}" y="{y:.1f}" {size} fill="{colour}"/>')
            parts.append(f'<text x="{x + BAR / 2:g}" y="{y - 4:.1f}">{value:,.0f}</text>')
    parts.append(_line(left, FLOOR, ""))
    if limit is not None:
        y = FLOOR - limit * scale
        parts.append(_line(left, y, ' stroke-dasharray="4"'))
        parts.append(f'<text x="{left + 16:g}" y="{y - 4:.1f}" text-anchor="start">wait</text>')
    return parts


def _line(left: float, y: float, style: str) -> str:
    return f'<line x1="{left + 12:g}" x2="{left + PANEL - 12:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="#555"{style}/>'
