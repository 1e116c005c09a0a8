"""The picture of a result: horizontal bars for the contenders of each group, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.results import MEASURES, Group, Spread

OWN, OTHER = "#4477aa", "#bbbbbb"
WIDTH, LABELS, BARS, ROW, BAR, TITLE = 760, 250, 380, 22, 14, 34


def chart(groups: Sequence[Group]) -> str:
    """The SVG document."""
    parts: list[str] = []
    top = 0
    for group in groups:
        parts += _panel(group, top)
        top += TITLE + ROW * len(group.rounds)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 8}" font-family="sans-serif" '
        'font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top + 8}" fill="white"/>', *parts, "</svg>\n"])


def _panel(group: Group, top: float) -> list[str]:
    measure = group.main_measure
    spreads = {name: spread for name in group.rounds if (spread := group.spread(name, measure)) is not None}
    title = escape(f"{group.title}: {MEASURES[measure]}")
    parts = [f'<text x="12" y="{top + 24:g}" font-weight="bold">{title}</text>']
    scale = BARS / max((spread.high for spread in spreads.values()), default=1.0)
    for index, (name, spread) in enumerate(spreads.items()):
        parts += _bar(name, spread, top + TITLE + index * ROW, scale)
    return parts


def _bar(name: str, spread: Spread, y: float, scale: float) -> list[str]:
    """One contender: its name, the bar of its median, a line over the range of its rounds, and the median as text."""
    colour = OWN if name.startswith("psfleet") else OTHER
    low, high = (LABELS + value * scale for value in (spread.low, spread.high))
    middle = y + BAR / 2
    size = f'width="{spread.median * scale:.1f}" height="{BAR}"'
    return [
        f'<text x="{LABELS - 8}" y="{middle + 4:g}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{LABELS}" y="{y:g}" {size} fill="{colour}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:g}" y2="{middle:g}" stroke="#222"/>',
        f'<text x="{high + 6:.1f}" y="{middle + 4:g}">{spread.median:,.4g}</text>',
    ]
