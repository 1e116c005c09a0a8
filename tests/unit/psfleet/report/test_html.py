"""The page of a run: complete, self-contained, escaped, and rendered also for a run without data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from support.report_samples import DONE, FAILED, TWO_ATTEMPTS

from psfleet.report.charts import line_chart
from psfleet.report.history import Point
from psfleet.report.html import render
from psfleet.report.measurements import DataReading, Gradients, WorkerGradients
from psfleet.report.schema import BestInfo, CheckpointInfo, Evaluation, Event

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Checker(HTMLParser):
    """Fails at a tag that is not closed in order; collects tags, attributes and the text outside of styles."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    checker.text = " ".join(checker.text.split())
    assert checker.open == []
    return checker


def points(losses: Sequence[float], step_secs: float = 0.01) -> list[Point]:
    return [
        Point(time=0.0, step=i, generation=0, loss=loss, step_secs=step_secs, examples_per_sec=1.0)
        for i, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    ("status", "exit_code", "expected"),
    [
        ("done", 0, "Done: step 7 of 10"),
        ("stopped", 130, "Stopped at step 7 of 10"),
        ("failed", 75, "Failed at step 7 of 10 with exit code 75"),
    ],
)
def test_the_headline_says_how_the_run_ended(status: str, exit_code: int, expected: str) -> None:
    report = FAILED.model_copy(update={"status": status, "exit_code": exit_code, "final_step": 7})
    html = render(report, [])
    assert f'<p class="status {status}">{expected}' in html


def test_the_page_shows_all_parts_of_a_report() -> None:
    text = checked(render(DONE, points([2.0, 1.0, 0.5]))).text
    for expected in (
        "evaluation: accuracy 0.9876",
        "median step time 12.5 ms",
        "From 2 at step 1 to 0.5 at step 3; lowest 0.5, highest 2.",
        "median 12.5 ms",
        "95th percentile 25 ms",
        "9 30 21 9 – 10 10 9 1 120",
        "0 123,456 40 30 10",
        "1 10 33.3 %",
        "1 event, 37 steps lost",
        "2023-11-14 22:13:20 ps 1 killed signal 9 37",
        "Step 1,900 in checkpoints/step-1900",
        "tensorflow 2.21.0",
    ):
        assert expected in text


def test_the_page_shows_each_attempt_and_the_numbers_of_the_one_that_trained() -> None:
    assert "Attempts" not in checked(render(DONE, [])).text
    text = checked(render(TWO_ATTEMPTS, [])).text
    for expected in (
        "Failed at step 1,900 of 1,900 with exit code 75",
        "evaluation: accuracy 0.9876",
        "2023-11-14 22:13:20 done 0 to 1,900 41.5 s",
        "2027-01-15 08:00:00 failed (75) 1,900 to 1,900 2 s lost ps 1; fleet.ps 1 -> 2",
    ):
        assert expected in text


def test_the_page_shows_evaluations_learning_rate_and_gradient_norm() -> None:
    curve = [
        point.model_copy(update={"learning_rate": 0.1 / point.step, "gradient_norm": 2.0 * point.step})
        for point in points([2.0, 1.0, 0.5])
    ]
    evaluations = [
        Evaluation(time=0.0, step=step, generation=1, secs=0.1, metrics={"top 5": value, "loss": math.nan})
        for step, value in ((2, 0.75), (3, 0.625))
    ]
    best = BestInfo(metric="top 5", value=0.75, step=2, path="checkpoints/00000002-g1")
    html = render(DONE.model_copy(update={"best": best}), curve, evaluations)
    text = checked(html).text
    for expected in (
        "best top 5 0.75 at step 2",
        "Evaluation: top 5",
        "From 0.75 at step 2 to 0.625 at step 3",
        "None of the 2 recorded values is a finite number.",
        "Learning rate",
        "From 0.1 at step 1 to 0.03333 at step 3",
        "Gradient norm",
        "From 2 at step 1 to 6 at step 3",
        "Best top 5: step 2 in checkpoints/00000002-g1",
    ):
        assert expected in text
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert not [each for each in ids if " " in each]


def test_the_page_of_a_run_that_was_stopped_early_says_why() -> None:
    early = {"final_step": 700, "stopped_early": "loss has not improved in the last 3 evaluations"}
    text = checked(render(DONE.model_copy(update=early), [])).text
    assert "Done: stopped early at step 700 of 1,900 loss has not improved in the last 3 evaluations" in text


def test_the_page_shows_what_was_lost_with_dynamic_sharding() -> None:
    data = DataReading(sharding="dynamic", delivered=1117, lost=3, ended_epochs=2)
    text = checked(render(DONE.model_copy(update={"data": data}), [])).text
    assert "examples delivered 1,117 examples lost in 2 epochs 3" in text
    assert "examples lost" not in checked(render(DONE, [])).text


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    page = checked(render(DONE, points([2.0, 1.0])))
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert not re.search(r"https?://|url\(|@import", render(DONE, points([2.0, 1.0])))


def test_every_chart_has_a_title_and_a_description_and_every_table_headers() -> None:
    html = render(DONE, points([2.0, 1.0]))
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)]
    assert len(charts) == 2
    for chart in charts:
        labels = str(chart.get("aria-labelledby")).split()
        assert [chart.findtext(tag) for tag in ("title", "desc")] == [
            element.text for label in labels for element in chart.iterfind(f"*[@id='{label}']")
        ]
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    assert tables
    assert all("<th scope=" in table for table in tables)


def test_names_cannot_smuggle_in_markup() -> None:
    evil = "<script>alert('x')</script>&\""
    report = DONE.model_copy(
        update={
            "name": evil,
            "run": evil,
            "mode": evil,
            "error": evil,
            "eval": {evil: 1.0},
            "versions": {evil: evil},
            "checkpoint": CheckpointInfo(path=evil, step=1),
            "gradients": Gradients(per_worker={evil: WorkerGradients(pushed=1, used=1)}),
            "events": [Event(time=0.0, role=evil, index=0, kind=evil, cause=evil)],
        }
    )
    page = checked(render(report, []))
    assert "script" not in page.tags
    assert page.text.count(evil) == 13


def test_a_failed_run_without_data_has_a_page() -> None:
    text = checked(render(FAILED, [])).text
    for expected in (
        "lost ps 1",
        "No losses were recorded.",
        "No step times were recorded.",
        "No gradients were pushed.",
        "No ps reported its parameters.",
        "No events were recorded.",
        "There is no verified checkpoint.",
    ):
        assert expected in text
    assert "Staleness" not in text


def test_a_single_point_is_drawn_as_a_dot() -> None:
    html = render(DONE, points([2.0]))
    assert html.count("<circle") == 2
    assert "2 at step 1." in checked(html).text


def test_losses_that_are_not_numbers_leave_a_gap_that_the_summary_mentions() -> None:
    html = render(DONE, points([3.0, 2.0, math.nan, math.inf, 1.0, 0.5, math.nan]))
    assert "3 of 7 are not finite and are omitted" in html
    assert html.count('class="curve"') == 3
    assert "nan" not in "".join(re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL))


def test_a_curve_without_any_number_says_so() -> None:
    assert "None of the 2 recorded losses is a finite number." in render(DONE, points([math.nan, math.inf]))


def test_staleness_is_shown_only_if_something_was_stale() -> None:
    assert "staleness-heading" not in render(DONE.model_copy(update={"staleness": {"0": 5, "3": 0}}), [])
    assert "staleness-heading" in render(DONE.model_copy(update={"staleness": {"0": 5, "3": 1}}), [])


def test_many_staleness_values_share_rows_and_none_is_lost() -> None:
    html = render(DONE.model_copy(update={"staleness": {str(value): 1 for value in range(99)}}), [])
    rows = re.findall(r'<th scope="row">(\d+) to (\d+)</th>.*?<td class="num">(\d+)</td>', html, re.DOTALL)
    assert len(rows) == 20
    assert sum(int(count) for _, _, count in rows) == 99
    assert [int(low) for low, _, _ in rows[1:]] == [int(high) + 1 for _, high, _ in rows[:-1]]


def test_thousands_of_points_make_a_small_page_that_keeps_the_peak() -> None:
    losses = [1.0 + i % 7 / 10 for i in range(50_000)]
    losses[31_234] = 40.0
    html = render(DONE, points(losses))
    assert len(html) < 60_000
    chart = line_chart([(float(i), loss) for i, loss in enumerate(losses)])
    assert chart is not None
    assert f" {round(chart.y_axis.at(40.0), 1):g} " in chart.paths[0]
