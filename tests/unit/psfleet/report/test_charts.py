"""The geometry of charts: everything inside the plot, few ticks, no peak lost."""

from __future__ import annotations

import math
import re

import pytest

from psfleet.report.charts import BOTTOM, LEFT, MAX_BUCKETS, RIGHT, TOP, Sample, line_chart, thinned


def test_thinning_keeps_order_ends_and_extremes() -> None:
    samples = [(float(i), math.sin(i)) for i in range(10_001)]
    kept = thinned(samples)
    assert len(kept) <= 2 * MAX_BUCKETS
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    assert max(kept, key=lambda each: each[1])[1] == max(y for _, y in samples)
    assert min(kept, key=lambda each: each[1])[1] == min(y for _, y in samples)


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [0.0, 0.0],
        [5.0, 5.0 + 1e-15],
        [-3.0, 4.0],
        [1e-300, 1e-299],
        [-1e99, 1e99],
        [1e-12, 1e12],
        [1.0, 1e200],
        [1e-9, 2e-9, 1.5e-9],
        [0.1, 1e6],
        [0.1, 5e-324],
        [0.0, 5e-324],
        [1e-322, 1e-322],
    ],
)
def test_everything_drawn_lies_inside_the_plot_with_few_ticks(values: list[float]) -> None:
    samples: list[Sample] = [(float(i), value) for i, value in enumerate(values)]
    chart = line_chart(samples)
    assert chart is not None
    pairs = [
        tuple(map(float, pair.split())) for path in chart.paths for pair in re.findall(r"[\d.e+-]+ [\d.e+-]+", path)
    ]
    assert pairs or chart.dots
    for x, y in [*pairs, *chart.dots]:
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM
    for axis, low, high in ((chart.x_axis, LEFT, RIGHT), (chart.y_axis, TOP, BOTTOM)):
        assert 1 <= len(axis.ticks) <= 9
        assert all(low <= tick.at <= high for tick in axis.ticks)


def test_values_over_two_decades_get_a_logarithmic_axis() -> None:
    chart = line_chart([(1.0, 1000.0), (2.0, 1.0)])
    assert chart is not None
    assert chart.y_axis.log
    assert [tick.label for tick in chart.y_axis.ticks] == ["1", "10", "100", "1000"]
