"""What a sweep prints of a trial that has finished."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.sweep.database import DATABASE, opened, optuna_module
from psfleet.sweep.progress_lines import finished_line


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_pruned_trial_has_the_step_and_the_objective_at_which_it_ended(tmp_path: Path, value: float) -> None:
    optuna = optuna_module()
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, bootstrap_count=1)
    study = optuna.create_study(storage=opened(tmp_path / DATABASE), study_name="small", pruner=pruner)
    trial = study.ask()
    trial.report(value, 2)
    assert trial.should_prune()
    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    progress: Any = SimpleNamespace(finished=study.get_trials(), total=3, best=[])
    line = finished_line(study.get_trials()[0], progress, "loss")
    assert line.startswith("1 of 3: trial 0 (")
    assert line.endswith(f"): pruned at step 2, loss {value:.6g}")
