"""Prunes trials by successive halving, without those that are repeated under other numbers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

import optuna


class CountedTrialsPruner(optuna.pruners.SuccessiveHalvingPruner):
    """See `SuccessiveHalvingPruner` of Optuna, for which a lost trial competes with its own repetition."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """See `optuna.pruners.BasePruner`."""
        return super().prune(cast(optuna.Study, _CountedTrials(study)), trial)


class _CountedTrials:
    """A study as a pruner sees it."""

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def get_trials(
        self, deepcopy: bool = True, states: Container[optuna.trial.TrialState] | None = None
    ) -> list[optuna.trial.FrozenTrial]:
        """See `optuna.Study`."""
        trials = self._study.get_trials(deepcopy)
        history = optuna.storages.RetryHeartbeatStaleTrialCallback.retry_history
        repeated = {number for trial in trials for number in history(trial)}
        return [each for each in trials if each.number not in repeated and (states is None or each.state in states)]
