"""Which trials compete when a worker prunes: a lost one and its repetition count once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from support.study_samples import loaded

from psfleet.sweep.storage import StoredStudy
from psfleet.sweep.workers import access_to
from worker_service.trial.service import _opened

NUM_TRIALS = 8


def reported(study: optuna.Study, trial: Any, value: float) -> bool:
    """Reports the value of a trial at the first step at which it can be pruned; returns whether it is."""
    own = optuna.trial.Trial(study, trial._trial_id)
    own.report(value, 1)
    return own.should_prune()


@pytest.mark.parametrize("how", ["worker", "program"])
def test_a_trial_that_is_repeated_takes_no_place_of_another_one(tmp_path: Path, how: str) -> None:
    """Of eight trials two continue: those with the values 0 and 1."""
    space = {"optimizer.learning_rate": {"choice": [0.1 + 0.1 * each for each in range(NUM_TRIALS)]}}
    study = loaded(tmp_path, space=space, prune={"kind": "asha", "every_steps": 1})
    stored, socket = StoredStudy(study, tmp_path), str(tmp_path / "storage")
    with stored.serving(socket):
        opened = _opened(access_to(study.study, socket), socket)
        assert not reported(opened, stored.ask(NUM_TRIALS), 0.0)
        lost = stored.study.get_trials()[0]
        if how == "worker":
            stored.lose(lost.number, "killed")
        else:
            stored.fail(lost.number, "raised")
            stored.repeat(stored.study.get_trials()[0])
        trials = [stored.ask(NUM_TRIALS) for _ in range(NUM_TRIALS)]
        repeated = stored.study.get_trials()[1]
        assert repeated.params == lost.params
        assert repeated.system_attrs.keys() == {*lost.system_attrs, "failed_trial", "retry_history"} - {
            "completed_rung_0"
        }
        assert not reported(opened, trials[0], 0.0)
        assert stored.study.get_trials()[1].system_attrs["completed_rung_0"] == 0.0
        for value in range(2, NUM_TRIALS):
            reported(opened, trials[value], float(value))
        assert not reported(opened, trials[1], 1.0)
