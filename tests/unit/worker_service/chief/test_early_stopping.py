"""When evaluations end training."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.chief_samples import sample_job

from psfleet.report.schema import Evaluation
from worker_service.chief.early_stopping import decide, final_step


def made(*values: float, first: int = 10, generation: int = 1, began: int | None = None) -> list[Evaluation]:
    """Evaluations every 10 steps, of a generation that began at a step."""
    steps = range(first, first + 10 * len(values), 10)
    of_all: dict[str, Any] = {"time": 0, "secs": 0.1, "generation": generation, "first_step": began}
    return [
        Evaluation(step=step, metrics={"accuracy": value}, **of_all) for step, value in zip(steps, values, strict=True)
    ]


def job(patience: int = 2, steps: int = 1000, **stop: Any) -> Any:
    watched = {"metric": "accuracy", "patience": patience, **stop}
    return sample_job(evaluate={"every_steps": 10, "stop": watched}, train={"steps": steps, "batch_size": 8})


@pytest.mark.parametrize(
    ("values", "stop", "step"),
    [
        pytest.param([0.1, 0.2, 0.3, 0.4], {}, None, id="it improves"),
        pytest.param([0.1, 0.3, 0.2, 0.3], {}, 40, id="an equal value is no improvement"),
        pytest.param([0.1, 0.3, 0.2, 0.31, 0.2], {}, None, id="an improvement starts the count again"),
        pytest.param([0.5, 0.6, 0.7, 0.8], {"min_delta": 0.15}, None, id="small gains add up to one"),
        pytest.param([0.5, 0.55, 0.6], {"min_delta": 0.15}, 30, id="gains below the smallest difference"),
        pytest.param([0.5, 0.4, 0.3], {"direction": "minimize"}, None, id="lower is better"),
        pytest.param([0.5, 0.6, 0.7], {"direction": "minimize"}, 30, id="higher is worse"),
        pytest.param([math.nan, math.nan], {}, 20, id="NaN from the start"),
        pytest.param([0.5, math.nan, 0.6], {}, None, id="NaN between"),
        pytest.param([0.5, math.inf, math.inf], {}, 30, id="infinite"),
        pytest.param([0.5, 0.4], {"patience": 1}, 20, id="no patience"),
    ],
)
def test_training_ends_after_so_many_evaluations_without_an_improvement(
    values: list[float], stop: dict[str, Any], step: int | None
) -> None:
    decision = decide(job(**stop), made(*values))
    assert (decision.step if decision else None) == step


def test_the_reason_names_metric_values_and_steps() -> None:
    decision = decide(job(min_delta=0.05), made(0.5, 0.875, 0.9, 0.75))
    assert decision is not None
    assert decision.reason == (
        "accuracy has not improved by at least 0.05 in the last 2 evaluations: 0.875 at step 20, then 0.75 at step 40"
    )


def test_a_step_that_is_evaluated_again_counts_once() -> None:
    """After a rollback, or at the end of an earlier run."""
    again = [*made(0.1, 0.5), *made(0.5, first=20), *made(0.5, first=20), *made(0.4, first=30)]
    assert decide(job(), again) is None
    decision = decide(job(), [*again, *made(0.4, first=40)])
    assert decision is not None
    assert decision.step == 40


def test_a_resumed_run_ends_at_the_same_step_unless_the_section_changed() -> None:
    evaluations = made(0.5, 0.4, 0.4, 0.4)
    assert final_step(job(), evaluations) == final_step(job(steps=2000), evaluations) == 30
    assert final_step(job(patience=4), evaluations) == 1000
    assert final_step(sample_job(), evaluations) == 100


def test_an_evaluation_of_the_final_step_stops_nothing() -> None:
    evaluations = made(0.5, 0.4, 0.4)
    assert decide(job(steps=30), evaluations) is None
    assert decide(job(steps=31), evaluations) is not None


def test_evaluations_without_the_metric_do_not_count() -> None:
    """They were made by an earlier run, of a program with other metrics."""
    other = [each.model_copy(update={"metrics": {"loss": 1.0}}) for each in made(1.0, 1.0, 1.0)]
    assert decide(job(), [*other, *made(0.5, 0.4, first=40)]) is None


def test_evaluations_that_a_rollback_has_undone_do_not_count() -> None:
    """In async mode those after it are of other steps, and of weights that are worse than the best that was undone."""
    before = made(0.1, 0.2, 0.3, 0.4, 0.5, began=0)
    after = made(0.2, 0.3, 0.4, 0.45, 0.46, first=21, generation=2, began=20)
    assert decide(job(), [*before, *after]) is None
    decision = decide(job(), [*before, *after[:2], *made(0.3, 0.3, first=42, generation=2, began=20)])
    assert decision is not None
    assert decision.reason.endswith("0.3 at step 31, then 0.3 at step 52")


def test_evaluations_up_to_the_step_of_a_rollback_count() -> None:
    before = made(0.5, 0.4, 0.9, began=0)
    decision = decide(job(), [*before, *made(0.5, first=24, generation=2, began=20)])
    assert decision is not None
    assert decision.step == 24


def test_an_evaluation_of_a_generation_that_is_undone_already_does_not_count() -> None:
    """The chief that made it was frozen meanwhile."""
    late = [*made(0.1, began=0), *made(0.5, first=12, generation=2, began=10), *made(0.1, 0.1, first=20, began=0)]
    assert decide(job(), late) is None


def test_a_rollback_that_undoes_the_evaluation_which_decided_does_not_undo_the_decision() -> None:
    """The chief that made it has not forgotten it, and its successor must decide the same."""
    before = made(0.5, 0.4, 0.4, began=0)
    decision = decide(job(), [*before, *made(0.6, first=14, generation=2, began=10)])
    assert decision is not None
    assert decision.step == 30
