"""Results of benchmarks: medians, ratios with their spread, goals, files and the page."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.results import Comparison, Group, Result, Spread
from benchmarks.results_page import FOLDER, page, publish, ratio_table, section, table


@pytest.fixture
def group() -> Group:
    group = Group("Small", (Comparison("psfleet", "stock", 0.5), Comparison("psfleet", "ray", 0.5)))
    for own, other in ((4.0, 10.0), (6.0, 8.0), (5.0, 20.0)):
        group.add("psfleet", {"step_ms": own, "cpu_ms": 2 * own})
        group.add("stock", {"step_ms": other})
    return group


def result(group: Group, name: str = "sync_step") -> Result:
    return Result(name, "Steps", "What was measured.", {"cpus": "2", "load": "0.10"}, [group], ["ray: no environment"])


def test_a_ratio_is_that_of_the_medians_with_the_range_of_the_rounds(group: Group) -> None:
    assert group.spread("psfleet", "step_ms") == Spread(5.0, 4.0, 6.0)
    assert group.ratio(group.comparisons[0]) == Spread(0.5, 0.25, 0.75)


def test_a_contender_that_was_not_measured_has_no_ratio(group: Group) -> None:
    assert group.ratio(group.comparisons[1]) is None
    assert group.ratio(Comparison("psfleet", "stock", measure="cpu_ms")) is None


@pytest.mark.parametrize(
    ("comparison", "ratio", "is_met"),
    [
        (Comparison("a", "b", 0.5), 0.5, True),
        (Comparison("a", "b", 0.5), 0.51, False),
        (Comparison("a", "b", 0.9, is_minimum=True), 0.9, True),
        (Comparison("a", "b", 0.9, is_minimum=True), 0.89, False),
        (Comparison("a", "b"), 3.0, None),
    ],
)
def test_a_goal_is_an_upper_bound_unless_it_is_a_minimum(
    comparison: Comparison, ratio: float, is_met: bool | None
) -> None:
    assert comparison.is_met(ratio) is is_met


def test_a_file_has_medians_and_ratios_and_is_read_as_the_same_result(group: Group, tmp_path: Path) -> None:
    written = result(group)
    written.write(tmp_path)
    content = json.loads((tmp_path / "sync_step.json").read_text())["groups"][0]
    assert content["medians"] == {"psfleet": {"cpu_ms": 10.0, "step_ms": 5.0}, "stock": {"step_ms": 10.0}}
    assert [each["ratio"] for each in content["comparisons"]] == [{"median": 0.5, "low": 0.25, "high": 0.75}, None]
    assert Result.read(tmp_path, "sync_step") == written
    assert Result.read(tmp_path, "links") is None


def test_a_table_has_the_measures_that_some_contender_has(group: Group) -> None:
    assert table(group) == [
        "| contender | ms per step | CPU ms per step |",
        "| --- | --- | --- |",
        "| psfleet | 5.00 (4.00 to 6.00) | 10.0 (8.00 to 12.0) |",
        "| stock | 10.0 (8.00 to 20.0) |  |",
    ]
    assert ratio_table(group)[2:] == ["| psfleet / stock, ms per step | 0.50 (0.25 to 0.75) | at most 0.5 | yes |"]


def test_a_section_says_what_was_not_measured_and_on_which_machine(group: Group) -> None:
    text = section(result(group))
    assert "- Not measured: ray: no environment" in text
    assert "cpus 2, load 0.10" in text


def test_the_page_keeps_the_results_of_other_benchmarks_in_a_fixed_order(group: Group, tmp_path: Path) -> None:
    publish(result(group, "links"), tmp_path)
    publish(result(group, "sync_step"), tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert 0 < text.index("results/sync_step.svg") < text.index("results/links.svg")


def test_the_page_of_the_repository_is_that_of_its_results() -> None:
    assert (FOLDER / "RESULTS.md").read_text() == page(FOLDER / "results")


def test_a_picture_has_a_bar_for_each_contender_in_proportion(group: Group, tmp_path: Path) -> None:
    group.title = "1 < 2"
    publish(result(group), tmp_path)
    root = ElementTree.parse(tmp_path / "results" / "sync_step.svg").getroot()
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("fill") != "white"]
    widths = [float(each.attrib["width"]) for each in bars]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert bars[0].get("fill") != bars[1].get("fill")


def test_a_picture_shows_what_the_first_comparison_is_about(group: Group, tmp_path: Path) -> None:
    group.comparisons = (Comparison("psfleet", "stock", 0.5, "cpu_ms"),)
    publish(result(group), tmp_path)
    picture = (tmp_path / "results" / "sync_step.svg").read_text()
    assert "Small: CPU ms per step" in picture
    assert ">stock<" not in picture
