"""Geometry of a line chart: scales, ticks and SVG path data, in pixels of the view box."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

WIDTH, HEIGHT = 760, 280
LEFT, RIGHT, TOP, BOTTOM = 72, 728, 14, 232
"""Edges of the plot area inside the view box; the ticks and labels are outside of them."""
MAX_BUCKETS = 300
"""A longer series is reduced to the minimum and maximum of this many intervals, each about 2 pixels wide."""
LOG_RATIO = 100.0
"""Positive values whose maximum is at least this multiple of their minimum have a logarithmic scale."""
DRAWABLE = 1e100
"""Larger numbers are treated as non-finite, because scaling them would overflow."""
SMALLEST = 1e-300
"""Differences of smaller numbers cannot be divided into ticks, because powers of ten below them are 0."""

Sample = tuple[float, float]
"""(x, y); y may be NaN or infinite, x may not."""


@dataclass(frozen=True)
class Tick:
    """A mark on an axis at a pixel position."""

    at: float
    label: str


@dataclass(frozen=True)
class Level:
    """A horizontal line through the plot area, with its label above or below it."""

    value: float
    label: str
    above: bool


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Pixel position of a value."""
        return _scale(self.low, self.high, self.start, self.end, self.log)(value)


@dataclass(frozen=True)
class Curve:
    """A drawn series: `paths` are SVG path data, `dots` are samples without neighbours."""

    paths: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class JointChart:
    """Input of the template that draws several series on the same axes; a series without a finite y has no paths."""

    x_axis: Axis
    y_axis: Axis
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class LineChart:
    """Input of the template that draws a chart; `paths` and `dots` are those of its curve.

    `second` is another curve on the same axes, which may have no paths.
    """

    x_axis: Axis
    y_axis: Axis
    paths: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    levels: tuple[tuple[float, Level], ...]
    num_left_out: int
    second: Curve


def line_chart(
    samples: Sequence[Sample], levels: Sequence[Level] = (), second: Sequence[Sample] = ()
) -> LineChart | None:
    """The chart of one or two series by ascending x, with gaps at non-finite y; None if no y is finite."""
    finite = [sample for sample in samples if is_drawable(sample[1])]
    values = [y for _, y in [*samples, *second] if is_drawable(y)]
    if not values:
        return None
    drawn_levels = [level for level in levels if is_drawable(level.value)]
    values += [level.value for level in drawn_levels]
    x_axis, y_axis = _axes([x for x, _ in [*samples, *second]], values)
    curve = _curve(samples, x_axis, y_axis)
    return LineChart(
        x_axis=x_axis,
        y_axis=y_axis,
        paths=curve.paths,
        dots=curve.dots,
        levels=tuple((round(y_axis.at(level.value), 1), level) for level in drawn_levels),
        num_left_out=len(samples) - len(finite),
        second=_curve(second, x_axis, y_axis),
    )


def joint_chart(series: Sequence[Sequence[Sample]]) -> JointChart | None:
    """The chart of several series, each as in `line_chart`; None if no y of any is finite."""
    samples = [sample for each in series for sample in each]
    values = [y for _, y in samples if is_drawable(y)]
    if not values:
        return None
    x_axis, y_axis = _axes([x for x, _ in samples], values)
    return JointChart(x_axis, y_axis, tuple(_curve(each, x_axis, y_axis) for each in series))


def _axes(steps: Sequence[float], values: Sequence[float]) -> tuple[Axis, Axis]:
    """The axes of a chart over steps; that of the values is logarithmic if they are positive and far apart."""
    is_log = min(values) >= SMALLEST and max(values) / min(values) >= LOG_RATIO
    x_axis = _axis(steps, LEFT, RIGHT, log=False, whole=True)
    return x_axis, _axis(values, BOTTOM, TOP, log=is_log, whole=False)


def _curve(samples: Sequence[Sample], x_axis: Axis, y_axis: Axis) -> Curve:
    """A series in pixels, with gaps at non-finite y."""
    runs = [
        [(round(x_axis.at(x), 1), round(y_axis.at(y), 1)) for x, y in group]
        for drawable, group in groupby(thinned(samples), key=lambda sample: is_drawable(sample[1]))
        if drawable
    ]
    return Curve(
        paths=tuple(path(run) for run in runs if len(run) > 1),
        dots=tuple(run[0] for run in runs if len(run) == 1),
    )


def path(points: Iterable[tuple[float, float]]) -> str:
    """SVG path data of straight lines from each point to the next."""
    return "M" + " L".join(f"{x:g} {y:g}" for x, y in points)


def is_drawable(value: float) -> bool:
    """Whether a number is finite and below DRAWABLE."""
    return math.isfinite(value) and abs(value) < DRAWABLE


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Reduces a series to the minimum and maximum of each of MAX_BUCKETS equal intervals, so that peaks are kept.

    An interval is drawn as a gap only if none of its values is finite.
    """
    if len(samples) <= 2 * MAX_BUCKETS:
        return list(samples)
    kept: list[Sample] = []
    for bucket in range(MAX_BUCKETS):
        interval = samples[bucket * len(samples) // MAX_BUCKETS : (bucket + 1) * len(samples) // MAX_BUCKETS]
        finite = [sample for sample in interval if is_drawable(sample[1])] or interval[:1]
        extremes = {min(finite, key=lambda sample: sample[1]), max(finite, key=lambda sample: sample[1])}
        kept.extend(sorted(extremes, key=lambda sample: sample[0]))
    return [samples[0], *kept[1:-1], samples[-1]]


def _axis(values: Sequence[float], start: float, end: float, *, log: bool, whole: bool) -> Axis:
    """An axis over all values, extended to the next ticks unless it is an axis of integers."""
    low, high = min(values), max(values)
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        marks = _powers_of_ten(low, high)
    else:
        low, high = _widened(low, high, whole)
        spacing = _spacing(high - low, whole)
        if not whole:
            low, high = math.floor(low / spacing + 1e-9) * spacing, math.ceil(high / spacing - 1e-9) * spacing
        marks = [i * spacing for i in range(math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9) + 1)]
    to_pixel = _scale(low, high, start, end, log)
    ticks = tuple(Tick(round(to_pixel(mark), 1), f"{mark:,.0f}" if whole else f"{mark:.6g}") for mark in marks)
    return Axis(low, high, start, end, log, ticks)


def _widened(low: float, high: float, whole: bool) -> tuple[float, float]:
    """A range of non-zero width; it starts at 0 if the values are near 0."""
    if 0 < low < high / 2:
        low = 0.0
    if high - low > max(1e-6 * max(abs(low), abs(high)), SMALLEST):
        return low, high
    margin = 1.0 if whole or abs(high) < SMALLEST else abs(high) / 10
    return low - margin, high + margin


def _spacing(width: float, whole: bool) -> float:
    """Distance between about five ticks: 1, 2 or 5 times a power of ten."""
    rough = width / 5
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return max(1.0, spacing) if whole else spacing


def _powers_of_ten(low: float, high: float) -> list[float]:
    """At most seven ticks of a logarithmic axis."""
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**exponent for exponent in range(first, last + 1, math.ceil((last - first) / 6))]


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    """The function from values to pixels."""
    if log:
        linear = _scale(math.log10(low), math.log10(high), start, end, False)
        return lambda value: linear(math.log10(value))
    return lambda value: start + (value - low) / (high - low) * (end - start)
