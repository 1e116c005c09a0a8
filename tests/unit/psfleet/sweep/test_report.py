"""The page of a study, and the geometry of its parallel coordinates."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import optuna
import pytest

from psfleet.job import trial_records
from psfleet.report.charts import BOTTOM, LEFT, RIGHT, TOP
from psfleet.sweep import report, results
from psfleet.sweep.coordinates import coordinates
from psfleet.sweep.study_file import Study

RATE, UNITS, KIND = "optimizer.learning_rate", "options.units", "options.kind"
SPACES = {
    RATE: optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True),
    UNITS: optuna.distributions.IntDistribution(1, 9),
    KIND: optuna.distributions.CategoricalDistribution(["a", "<b>", None]),
}


def _study() -> Study:
    space = {RATE: {"float": [1e-4, 1e-1], "log": True}, UNITS: {"int": [1, 9]}, KIND: {"choice": ["a", "<b>", None]}}
    return Study.model_validate(
        {
            "name": "digits",
            "job": "job.yaml",
            "space": space,
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "search": {"kind": "random", "trials": 9},
            "keep": 2,
        }
    )


def _trials(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Finished trials of value, learning rate, units, kind, curve and attributes; None: it has failed."""
    states = optuna.trial.TrialState
    study = optuna.create_study(direction="maximize")
    for value, rate, units, kind, curve, attributes in rows:
        study.add_trial(
            optuna.trial.create_trial(
                state=states.FAIL if value is None else states.COMPLETE,
                value=value,
                params={RATE: rate, UNITS: units, KIND: kind},
                distributions=SPACES,
                intermediate_values=curve,
                user_attrs=attributes,
            )
        )
    return study.get_trials()


def _page(trials: list[Any]) -> str:
    return report.page(_study(), trials, results.best_first(_study(), trials), total=9)


class _Tags(HTMLParser):
    """Counts the tags, and fails for one that is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_the_page_shows_the_best_trial_curves_importances_and_failures() -> None:
    metrics = {trial_records.METRICS: {"accuracy": 0.95, "loss": 0.25}}
    rows: list[tuple[Any, ...]] = [
        (0.95 if at == 2 else 0.1 * at, 10.0 ** -(at % 3 + 1), at + 1, "a", {10: 0.1, 20: 0.2 * at}, metrics)
        for at in range(5)
    ]
    page = _page(_trials([*rows, (None, 0.1, 1, "<b>", {}, {trial_records.ERROR: "step 3: <NaN>"})]))
    tags = _Tags(page).tags
    assert "Best: trial 2, accuracy 0.95" in page
    assert "6 of 9 trials have finished: 5 complete, 1 failed" in page
    assert "evaluation: loss" in page
    assert "step 3: &lt;NaN&gt;" in page
    curves = [each for tag, each in tags if tag == "path" and str(each.get("style")).startswith("stroke: var(--run-")]
    assert len(curves) == 5 + 5, "a curve and a legend for each"
    assert [name for tag, each in tags if tag == "rect" for name in [each["class"]]] == ["full"] * 3
    assert not [tag for tag, each in tags if tag == "script" or "src" in each or "href" in each]
    assert "trial 2</li>" in page.split("trial 4</li>")[0], "the best one comes first"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(None, 0.1, 1, "a", {}, {trial_records.ERROR: "failed"})],
        [(1.0, 0.1, 1, None, {}, {})] * 5,
        [(1e300, 0.1, 1, "a", {5: math.inf}, {}), (-1e300, 0.1, 1, "a", {5: math.nan}, {})],
    ],
    ids=["none", "failed", "equal", "huge"],
)
def test_a_page_of_few_or_strange_trials_is_whole(rows: list[tuple[Any, ...]]) -> None:
    page = _page(_trials(rows))
    _Tags(page)
    assert "Needs at least four complete trials" in page
    assert 'd="M nan' not in page.lower()


def test_lines_go_from_axis_to_axis_at_the_heights_of_the_values() -> None:
    trials = _trials([(0.0, 1e-4, 1, None, {}, {}), (0.5, 1e-2, 5, "a", {}, {}), (1.0, 1e-1, 9, "<b>", {}, {})])
    chart = coordinates(_study(), trials)
    assert chart is not None
    assert [axis.name for axis in chart.axes] == [RATE, UNITS, KIND, "accuracy"]
    third = (RIGHT - LEFT) / 3
    assert [axis.x for axis in chart.axes] == pytest.approx([LEFT, LEFT + third, RIGHT - third, RIGHT], abs=0.1)
    points = [[tuple(map(float, point.split())) for point in path[1:].split(" L")] for path in chart.paths]
    heights = [[(BOTTOM - y) / (BOTTOM - TOP) for _, y in row] for row in points]
    # Texts are in their order: <b>, None, a.
    for found, expected in zip(heights, [[0, 0, 0.5, 0], [2 / 3, 0.5, 1, 0.5], [1, 1, 0, 1]], strict=True):
        assert found == pytest.approx(expected, abs=0.001)
    assert [tick.label for tick in chart.axes[2].ticks] == ["<b>", "None", "a"]
    assert [tick.label for tick in chart.axes[0].ticks] == ["0.0001", "0.1"]
