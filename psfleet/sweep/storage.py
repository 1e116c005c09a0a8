"""A study in Optuna's storage: asks for trials, repeats lost ones, and serves the storage to workers."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from psfleet.errors import PROGRAM_FAILED, BadJobError
from psfleet.job import trial_records
from psfleet.sweep.database import DATABASE, opened, optuna_module
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.study_file import Choice, Dimension, Study

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

DEFINITION = "definition"
"""Attribute of a study: what may not change between two starts of its driver."""
MAX_REPETITIONS = 2
"""How often a trial is repeated whose worker died."""
RUNG = "completed_rung_"
"""Begins the names of Optuna's attributes of a trial: its values at the steps at which it could have been pruned."""


class StoredStudy:
    """A study in the SQLite database of its folder; used by the driver's thread.

    Args of the constructor:
        loaded: The study.
        folder: Of its results.

    Raises:
        BadJobError: The folder has a study with another job, space, objective or search.
    """

    def __init__(self, loaded: LoadedStudy, folder: Path) -> None:
        self._optuna = optuna_module()
        self._loaded = loaded
        study = loaded.study
        self._storage = opened(folder / DATABASE)
        for name in self._optuna.get_all_study_names(self._storage):
            if name != study.name:
                raise BadJobError(
                    f"{folder} has the study {name!r}, expected {study.name!r}, another --out, or --fresh"
                )
        self._study: optuna.Study = self._optuna.create_study(
            storage=self._storage, study_name=study.name, direction=study.objective.direction, load_if_exists=True
        )
        definition = json.loads(json.dumps(_definition(loaded), default=str))
        before = self._study.user_attrs.get(DEFINITION)
        if before is None:
            self._study.set_user_attr(DEFINITION, definition)
        for name, value in definition.items():
            if before is not None and before.get(name) != value:
                raise BadJobError(
                    f"{name} differs from that of the study in {folder}, expected the same, another name, or --fresh"
                )
        self._distributions = {name: _distribution(self._optuna, each) for name, each in study.space.items()}
        self._retry = self._optuna.storages.RetryHeartbeatStaleTrialCallback()

    @property
    def study(self) -> Any:
        """Optuna's study."""
        return self._study

    def trials(self) -> list[Any]:
        """All trials that count: those that are repeated under another number do not."""
        repeated = set(self.repeated())
        return [trial for trial in self._study.get_trials(deepcopy=False) if trial.number not in repeated]

    def finished(self) -> list[Any]:
        """Those of `trials` that are complete, pruned or failed."""
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def repeated(self) -> list[int]:
        """Numbers of the trials that are repeated under others."""
        trials = self._study.get_trials(deepcopy=False)
        return [number for trial in trials for number in self._retry.retry_history(trial)]

    def ask(self, total: int) -> Any:
        """The next trial, or None: so many were asked for already.

        It is one that is to be repeated, or a new one. A new one depends on the seed, its number and the trials before.
        """
        states = self._optuna.trial.TrialState
        while True:
            trials = self.trials()
            if len(trials) >= total and not any(trial.state == states.WAITING for trial in trials):
                return None
            number = len(self._study.get_trials(deepcopy=False))
            self._study.sampler = _sampler(self._optuna, self._loaded.study, number)
            trial = self._study.ask(self._distributions)
            try:
                job = self._loaded.job_of(trial.params)
            except BadJobError as error:
                # Each value is valid, but not all of them together.
                self._fail(trial._trial_id, str(error))
                continue
            trial.set_user_attr(trial_records.JOB, job.model_dump_json())
            return trial

    def assign(self, index: int, trial: Any) -> None:
        """Gives a trial to a worker; None: it has none."""
        self._study.set_user_attr(trial_records.assignment(index), None if trial is None else trial._trial_id)

    def lose(self, number: int, cause: str, is_worker_lost: bool = True) -> bool:
        """Has a trial repeated whose worker or driver died, unless too many workers died: then it has failed.

        A driver that dies in this call does the rest when it starts again.

        Returns:
            Whether it had no result.
        """
        trials = self._study.get_trials(deepcopy=False)
        lost = trials[number]
        if lost.state != self._optuna.trial.TrialState.RUNNING:
            return False
        losses = lost.user_attrs.get(trial_records.LOSSES, 0) + is_worker_lost
        if number not in self.repeated() and losses <= MAX_REPETITIONS:
            # Optuna changes the lists of the trial that it gets.
            again = copy.deepcopy(lost)
            again.user_attrs[trial_records.LOSSES] = losses
            for name in (trial_records.ERROR, trial_records.EXIT_CODE, trial_records.DETAILS):
                # Of a worker that died before it reported that the trial has failed.
                again.user_attrs.pop(name, None)
            self._repeat(again)
        # The report of a dead worker may still arrive: then the trial has that result, and is repeated, too.
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._fail(lost._trial_id, cause)
        return True

    def fail(self, number: int, cause: str) -> None:
        """Fails a trial whose program ended its worker; one that has a result keeps it."""
        trial = self._study.get_trials(deepcopy=False)[number]
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial._trial_id, trial_records.EXIT_CODE, PROGRAM_FAILED)
            self._fail(trial._trial_id, cause)

    def repeat(self, trial: Any) -> None:
        """Has a trial repeated that has failed because of the program, without a limit."""
        again = copy.deepcopy(trial)
        again.user_attrs = {}
        self._repeat(again)

    def _repeat(self, again: Any) -> None:
        """Adds the repetition of a trial, which has reached no step yet; `again` is a copy, which is changed."""
        again.system_attrs = {name: value for name, value in again.system_attrs.items() if not name.startswith(RUNG)}
        self._retry(self._study, again)

    def _fail(self, trial_id: int, cause: str) -> None:
        """Fails a trial; not by `Study.tell`, after which the sampler of a grid may call `Study.stop`, which raises."""
        self._storage.set_trial_user_attr(trial_id, trial_records.ERROR, cause)
        self._storage.set_trial_state_values(trial_id, state=self._optuna.trial.TrialState.FAIL)

    def lose_running(self, cause: str) -> None:
        """Has all trials repeated that an earlier driver left."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state == self._optuna.trial.TrialState.RUNNING:
                self.lose(trial.number, cause, is_worker_lost=False)

    @contextmanager
    def serving(self, socket: str) -> Iterator[None]:
        """Context manager that serves the storage to workers on a Unix socket."""
        from optuna.storages._grpc.server import make_server

        threads = ThreadPoolExecutor(2 + self._loaded.study.fleet.workers)
        server = make_server(self._storage, trial_records.UNIX, cast(int, socket), threads)
        server.start()
        try:
            yield
        finally:
            server.stop(0).wait()


def num_trials(study: Study) -> int:
    """How many trials a study has; those that are repeated count once."""
    if study.search.kind != "grid":
        assert study.search.trials is not None, "the study file was checked"
        return study.search.trials
    return min(study.num_combinations, study.search.trials or study.num_combinations)


def _definition(loaded: LoadedStudy) -> dict[str, Any]:
    study = loaded.study
    search = {"kind": study.search.kind, "seed": study.search.seed}
    space = {name: each.model_dump(mode="json") for name, each in study.space.items()}
    return {
        "job": loaded.content_of({}),
        "space": space,
        "objective": study.objective.model_dump(mode="json"),
        "search": search,
    }


def _grid(study: Study) -> dict[str, list[Choice]]:
    return {
        name: list(range(each.int_[0], each.int_[1] + 1)) if each.int_ is not None else each.samples
        for name, each in study.space.items()
    }


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    found = optuna.distributions
    if dimension.float_ is not None:
        return found.FloatDistribution(*dimension.float_, log=dimension.log)
    if dimension.int_ is not None:
        return found.IntDistribution(*dimension.int_, log=dimension.log)
    return found.CategoricalDistribution(dimension.choice)


def _sampler(optuna: Any, study: Study, number: int) -> Any:
    """A sampler for one trial: the same for any number of workers, and after a restart of the driver."""
    seed = int(np.random.SeedSequence([study.search.seed, number]).generate_state(1)[0])
    match study.search.kind:
        case "grid":
            # The order of the grid depends on the study's seed alone.
            return optuna.samplers.GridSampler(_grid(study), seed=study.search.seed)
        case "random":
            return optuna.samplers.RandomSampler(seed=seed)
        case _:
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
