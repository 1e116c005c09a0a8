"""What the benchmark of a service makes of latencies."""

from __future__ import annotations

import pytest

from benchmarks.children import ChildError
from benchmarks.serving import measures


def test_percentiles_and_throughput_are_those_of_the_latencies() -> None:
    found = measures([number / 1000 for number in range(101)], 2.0)
    assert found == pytest.approx({"p50_ms": 50.0, "p99_ms": 99.0, "queries_per_sec": 50.5})


def test_a_run_without_answers_fails() -> None:
    with pytest.raises(ChildError, match="1 queries were answered in 2 s, expected at least 2"):
        measures([0.1], 2.0)
