"""Numbers, durations and times as texts for readers."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any


def count_text(value: int | None) -> str:
    """A whole number with separators of thousands."""
    return "–" if value is None else f"{value:,}"


def number_text(value: float | None) -> str:
    """A number with about four significant digits."""
    if value is None:
        return "–"
    if math.isfinite(value) and 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def duration_text(secs: float | None) -> str:
    """A duration in ms, s, min or h, depending on its length."""
    if secs is None or not math.isfinite(secs):
        return number_text(secs)
    if 0 < secs < 1:
        return f"{secs * 1000:.3g} ms"
    if secs < 120:
        return f"{secs:.3g} s"
    minutes, rest = divmod(round(secs), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def moment(time: float) -> dict[str, Any]:
    """Unix time in seconds as an ISO 8601 text for machines and a text for readers, in UTC."""
    at = datetime.fromtimestamp(time, UTC)
    return {"machine": at.isoformat(timespec="seconds"), "reader": f"{at:%Y-%m-%d %H:%M:%S}"}
