"""When a plateau schedule reduces the learning rate."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from support.chief_samples import sample_job

from psfleet.job.job import Job
from psfleet.job.learning_rate import reduced_rate
from psfleet.report.reductions import Reduction
from psfleet.report.schema import Evaluation
from worker_service.chief.plateau import next_reduction

RATE = 0.5
LENGTH = 60


def job(steps: int = 10_000, **schedule: Any) -> Job:
    """Reduces after two evaluations without an improvement."""
    watched = {"kind": "plateau", "metric": "accuracy", "factor": 0.5, "patience": 2, **schedule}
    return sample_job(
        evaluate={"every_steps": 10},
        train={"steps": steps, "batch_size": 8},
        optimizer={"name": "sgd", "learning_rate": RATE, "schedule": watched},
    )


def made(*values: float, first: int = 10, generation: int = 1, began: int | None = None) -> list[Evaluation]:
    """Evaluations every 10 steps, of a generation that began at a step."""
    steps = range(first, first + 10 * len(values), 10)
    of_all: dict[str, Any] = {"time": 0, "secs": 0.1, "generation": generation, "first_step": began}
    return [
        Evaluation(step=step, metrics={"accuracy": value}, **of_all) for step, value in zip(steps, values, strict=True)
    ]


def reduction(evaluation: int, step: int | None = None) -> Reduction:
    """A recorded one; by default it applies from the step of its evaluation on."""
    return Reduction(evaluation=evaluation, step=evaluation if step is None else step, learning_rate=0.25)


def due(the_job: Job, evaluations: list[Evaluation], *reductions: Reduction) -> int | None:
    """The step of the evaluation that calls for a reduction."""
    found = next_reduction(the_job, evaluations, reductions)
    return None if found is None else found.step


def rates(the_job: Job, values: list[float]) -> list[float]:
    """The learning rate after each evaluation, if every reduction applies at once."""
    evaluations, reductions, found = made(*values), [], []
    for number in range(1, len(values) + 1):
        step = due(the_job, evaluations[:number], *reductions)
        reductions += [] if step is None else [reduction(step)]
        found.append(reduced_rate(the_job.optimizer, len(reductions)))
    return found


def rates_of_keras(values: list[float], **arguments: Any) -> list[float]:
    """The learning rate after each epoch."""
    callback = keras.callbacks.ReduceLROnPlateau(monitor="accuracy", **arguments)
    optimizer = SimpleNamespace(learning_rate=RATE)
    callback.set_model(SimpleNamespace(optimizer=optimizer))
    callback.on_train_begin()
    found = []
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"accuracy": value})
        found.append(float(optimizer.learning_rate))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_rates_are_those_of_keras(seed: int, direction: str) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {
        "factor": chance.choice([0.1, 0.5, 0.9]),
        "patience": chance.randint(1, 4),
        "min_delta": chance.choice([0.0, 1e-4, 0.05]),
        "cooldown": chance.randint(0, 3),
    }
    lowest = chance.choice([0.0, 0.01, 0.2])
    values = [chance.random() for _ in range(LENGTH)]
    found = rates(job(direction=direction, min_learning_rate=lowest, **options), values)
    expected = rates_of_keras(values, mode=direction[:3], min_lr=lowest, **options)
    assert found == pytest.approx(expected, rel=1e-5), (seed, options, lowest)
    assert len(set(found)) > 1, "nothing was reduced"


def test_the_defaults_are_those_of_keras() -> None:
    values = [0.5, *([0.50005] * LENGTH)]
    schedule = {"kind": "plateau", "metric": "accuracy"}
    defaults = sample_job(
        evaluate={"every_steps": 10},
        train={"steps": 10_000, "batch_size": 8},
        optimizer={"name": "sgd", "learning_rate": RATE, "schedule": schedule},
    )
    assert rates(defaults, values) == pytest.approx(rates_of_keras(values, mode="max"), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_no_improvement(value: float) -> None:
    assert due(job(), made(0.5, value, value)) == 30
    assert due(job(), made(value, value)) == 20


def test_evaluations_before_a_reduction_applies_do_not_count() -> None:
    """Their weights were trained with the rate before."""
    evaluations = made(0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4)
    assert due(job(), evaluations) == 30
    assert due(job(), evaluations, reduction(30, step=51)) == 70
    assert due(job(), evaluations[:6], reduction(30, step=51)) is None
    assert due(job(), evaluations, reduction(30, step=30)) == 50


def test_an_improvement_before_a_reduction_applies_is_one() -> None:
    evaluations = made(0.5, 0.4, 0.4, 0.7, 0.6, 0.6, first=10)
    assert due(job(), evaluations, reduction(30, step=41)) == 60
    assert due(job(min_delta=0.15), made(0.5, 0.4, 0.4, 0.7, 0.6, 0.7), reduction(30, step=41)) == 60


def test_a_step_that_is_evaluated_again_counts_once() -> None:
    again = [*made(0.1, 0.5), *made(0.5, 0.4, first=20), *made(0.4, first=30)]
    assert due(job(), again) is None
    assert due(job(), [*again, *made(0.4, first=40)]) == 40


def test_what_was_reduced_stays_so_with_another_schedule() -> None:
    """Only what follows the last reduction is judged anew."""
    evaluations = made(0.5, 0.4, 0.4, 0.4, 0.4, 0.4)
    for patience, step in ((1, 40), (3, 60), (4, None)):
        assert due(job(patience=patience), evaluations, reduction(30)) == step


def test_old_evaluations_cause_one_reduction_if_a_run_resumes_with_the_schedule() -> None:
    evaluations = made(0.5, *[0.4] * 20)
    assert due(job(), evaluations) == 30
    assert due(job(), evaluations, reduction(30, step=215)) is None


def test_evaluations_without_the_metric_or_of_the_final_step_do_not_count() -> None:
    other = [each.model_copy(update={"metrics": {"loss": 1.0}}) for each in made(1.0, 1.0, 1.0)]
    assert due(job(), [*other, *made(0.5, 0.4, first=40)]) is None
    assert due(job(steps=30), made(0.5, 0.4, 0.4)) is None
    assert due(sample_job(), made(0.5, *[0.4] * 20)) is None


def test_evaluations_that_a_rollback_has_undone_do_not_count() -> None:
    """In async mode those after it are of other steps, and of weights that are worse than the best that was undone."""
    before = made(0.1, 0.2, 0.3, 0.4, 0.5, began=0)
    after = made(0.2, 0.3, 0.4, 0.4, 0.4, first=21, generation=2, began=20)
    assert due(job(), [*before, *after[:4]]) is None
    assert due(job(), [*before, *after]) == 61


def test_a_reduction_whose_evaluation_was_undone_applies_again_before_another_one_is_due() -> None:
    before = made(0.5, 0.4, 0.4, began=0)
    after = made(0.4, 0.4, 0.4, 0.4, 0.4, 0.4, first=11, generation=2, began=10)
    undone = reduction(30, step=41)
    for number in range(6):
        assert due(job(), [*before, *after[:number]], undone) is None
    assert due(job(), [*before, *after], undone) == 61
    assert due(job(), [*before, *after], undone, reduction(61)) is None
