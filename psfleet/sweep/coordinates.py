"""Geometry of parallel coordinates: an axis for each field of a study and for the objective, a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psfleet.report.charts import BOTTOM, LEFT, RIGHT, TOP, Tick, path
from psfleet.report.formats import number_text
from psfleet.sweep.study_file import Study

MAX_TICKS = 8
"""Labels of an axis of choices; of more, the first and the last ones are shown."""


@dataclass(frozen=True)
class CoordinateAxis:
    """A vertical axis at a pixel position."""

    name: str
    x: float
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Coordinates:
    """Input of the template: the axes, and the SVG path data of each trial in their order."""

    axes: tuple[CoordinateAxis, ...]
    paths: tuple[str, ...]


Scale = tuple[Callable[[Any], float], tuple[Tick, ...]]
"""From a value to a pixel, and the ticks."""


def coordinates(study: Study, trials: Sequence[Any]) -> Coordinates | None:
    """The chart of complete trials; None if there are none."""
    if not trials:
        return None
    columns = {name: [trial.params[name] for trial in trials] for name in study.space}
    scales = [
        _choices(columns[name]) if each.choice is not None else _numbers(columns[name], each.log)
        for name, each in study.space.items()
    ]
    scales.append(_numbers([trial.value for trial in trials], is_log=False))
    names = [*study.space, study.objective.metric]
    spacing = (RIGHT - LEFT) / (len(names) - 1)
    places = [round(LEFT + at * spacing, 1) for at in range(len(names))]
    values = zip(*columns.values(), [trial.value for trial in trials], strict=True)
    paths = tuple(
        path((x, to_pixel(value)) for x, value, (to_pixel, _) in zip(places, row, scales, strict=True))
        for row in values
    )
    axes = zip(names, places, scales, strict=True)
    return Coordinates(tuple(CoordinateAxis(name, x, ticks) for name, x, (_, ticks) in axes), paths)


def _numbers(values: Sequence[float], is_log: bool) -> Scale:
    """From the lowest to the highest number."""
    low, high = min(values), max(values)
    shown: Callable[[float], float] = math.log if is_log else float
    # Differences of the halves, because that of the whole may overflow.
    width = shown(high) / 2 - shown(low) / 2

    def to_pixel(value: float) -> float:
        share = (shown(value) / 2 - shown(low) / 2) / width if width else 0.5
        return round(BOTTOM + share * (TOP - BOTTOM), 1)

    ends = [low, high] if width else [low]
    return to_pixel, tuple(Tick(to_pixel(value), number_text(value)) for value in ends)


def _choices(values: Sequence[Any]) -> Scale:
    """The choices that occur, numbers in their order and other values as texts."""
    # By their texts: 1 and True are equal.
    texts = {str(value): value for value in values}
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in texts.values())
    ordered = sorted(texts, key=lambda text: texts[text]) if is_number else sorted(texts)
    at = {text: index for index, text in enumerate(ordered)}
    to_place, _ = _numbers([0, max(1, len(ordered) - 1)], is_log=False)

    def to_pixel(value: Any) -> float:
        return to_place(at[str(value)])

    labelled = ordered if len(ordered) <= MAX_TICKS else [ordered[0], ordered[-1]]
    return to_pixel, tuple(Tick(to_place(at[text]), text[:16]) for text in labelled)
