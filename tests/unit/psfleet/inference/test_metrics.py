"""Metrics of a service: what is counted, and their documentation."""

from __future__ import annotations

from pathlib import Path

from psfleet.inference.metrics import ANSWER_MEMBERS, DONE, METRICS, QUERIES, ServiceMetrics
from psfleet.inference.tensors import Status

DOCUMENT = Path(__file__).parents[4] / "docs" / "serving.md"


def test_each_metric_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        cells = (f"`{metric.exposed_name}`", metric.kind, labels, metric.unit, metric.help)
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in text, metric.name


def test_queries_are_counted_by_result_and_answers_by_their_members() -> None:
    metrics = ServiceMetrics("net")
    for members in (4, 5, 5):
        metrics.add("rest", DONE, 0.01, members)
    metrics.add("grpc", Status.INVALID.name.lower(), 0.01)
    (found,) = metrics.read()
    values = {(each.metric, each.labels): each.value for each in found.readings}
    assert (found.run, found.role, found.index) == ("net", "front", 0)
    assert values[QUERIES, ("rest", "done")] == 3
    assert values[QUERIES, ("grpc", "invalid")] == 1
    assert values[ANSWER_MEMBERS, ("4",)] == 1
    assert values[ANSWER_MEMBERS, ("5",)] == 2
