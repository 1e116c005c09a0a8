"""The page of a study: `report.html` with the best trial, learning curves, parallel coordinates and importances."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from psfleet.job import trial_records
from psfleet.report import charts
from psfleet.report.charts import JointChart
from psfleet.report.formats import duration_text, number_text
from psfleet.report.html import Bar, template
from psfleet.sweep.coordinates import coordinates
from psfleet.sweep.database import optuna_module
from psfleet.sweep.study_file import Study

NUM_COLORS = 8
"""Trials that have a colour of their own: the best ones."""
MAX_CURVES = 200
"""Of the trials without a colour, the newest of which are drawn."""
MIN_IMPORTANCES = 4
"""Complete trials from which importances are computed."""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, as the template `chart.html.j2` needs it."""

    name: str
    title: str
    y_label: str
    chart: JointChart | None
    summary: str


def page(study: Study, trials: list[Any], best: list[Any], total: int) -> str:
    """Renders the page.

    Args:
        trials: The finished ones.
        best: The complete ones, the best one first.
        total: Number of trials of the study.
    """
    ranked = best[:NUM_COLORS]
    numbers = {trial.number for trial in ranked}
    others = [trial for trial in trials if trial.number not in numbers and trial.intermediate_values][-MAX_CURVES:]
    return template("study.html.j2").render(
        study=study,
        headline=_headline(study, best),
        counts=_counts(trials, total),
        best=_settings(best),
        figure=_curves(study, [*others, *ranked]),
        num_others=len(others),
        labels=[f"trial {trial.number}" for trial in ranked],
        coordinates=coordinates(study, _drawn(best)),
        importances=_importances(study, best),
        rows=[_row(study, trial) for trial in best[: study.keep]],
        failed=[(trial.number, str(trial.user_attrs.get(trial_records.ERROR))) for trial in trials if _failed(trial)],
        box=charts,
    )


def _headline(study: Study, best: list[Any]) -> str:
    if not best:
        return "No trial is complete"
    return f"Best: trial {best[0].number}, {study.objective.metric} {number_text(best[0].value)}"


def _counts(trials: list[Any], total: int) -> str:
    """Finished trials by their state."""
    states = [trial.state.name for trial in trials]
    parts = [f"{states.count(state)} {text}" for state, text in _STATES.items() if state in states]
    return f"{len(trials)} of {total} trials have finished: {', '.join(parts)}" if parts else "no trial has finished"


_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def _settings(best: list[Any]) -> list[tuple[str, str]]:
    """Values of the best trial and its metrics."""
    if not best:
        return []
    metrics = best[0].user_attrs.get(trial_records.METRICS, {})
    values = [(name, _text(value)) for name, value in best[0].params.items()]
    return [*values, *((f"evaluation: {name}", number_text(value)) for name, value in metrics.items())]


def _curves(study: Study, trials: list[Any]) -> Figure:
    """The objective of each trial at its evaluations."""
    series = [sorted((float(step), value) for step, value in each.intermediate_values.items()) for each in trials]
    chart = charts.joint_chart(series)
    metric = study.objective.metric
    summary = f"{metric} of {len(trials)} trials; the best have colours" if chart else "no trial was evaluated"
    return Figure("curves", "Learning curves", metric, chart, summary)


def _drawn(best: list[Any]) -> list[Any]:
    """Complete trials whose objective can be drawn, the best one last: it covers the others."""
    return [trial for trial in reversed(best[:MAX_CURVES]) if charts.is_drawable(trial.value)]


def _importances(study: Study, best: list[Any]) -> list[Bar]:
    """How much each field matters for being among the best trials (PED-ANOVA, Watanabe et al. 2023); largest first."""
    if len(best) < MIN_IMPORTANCES or len({trial.value for trial in best}) < 2:
        return []
    optuna = optuna_module()
    whole = optuna.create_study(direction=study.objective.direction)
    whole.add_trials(best)
    with warnings.catch_warnings():
        # Of few trials that do not differ: all fields are equally important then.
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(
            whole, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    most = max(found.values(), default=0) or 1
    return [Bar(name, value / most, 0.0, (f"{value:.2f}",)) for name, value in found.items()]


def _row(study: Study, trial: Any) -> list[str]:
    """One of the best trials in the table."""
    secs = (trial.datetime_complete - trial.datetime_start).total_seconds()
    values = [_text(trial.params.get(name)) for name in study.space]
    return [str(trial.number), number_text(trial.value), *values, duration_text(secs)]


def _failed(trial: Any) -> bool:
    return trial.state.name == "FAIL"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
