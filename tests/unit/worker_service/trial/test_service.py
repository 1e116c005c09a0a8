"""A worker of a study: when it gives a trial up, and when a trial fails before its last step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from support.program_samples import sample_job

from psfleet.errors import StoppedError
from psfleet.job import trial_records
from psfleet.job.trial_access import TrialAccess
from psfleet.polling import wait_until
from psfleet.service import settings
from psfleet.sweep.database import optuna_module
from worker_service.driver_link import FolderLink
from worker_service.trial import service
from worker_service.trial.pruner import CountedTrialsPruner
from worker_service.trial.signs_of_life import SignsOfLife

WAIT_SECS = 30.0
ENDLESS = 10**9
"""More steps than a test waits for."""
PROGRAM = """
import psfleet, tensorflow as tf

def data(x=1.0):
    return tf.data.Dataset.from_tensor_slices([x] * 8)

def loss(x):
    w = tf.compat.v1.get_variable("w", [], initializer=tf.compat.v1.ones_initializer())
    return tf.reduce_mean(tf.square(w * x))

def build(evaluated):
    return psfleet.GraphProgram(loss=loss, train=lambda *_: data().repeat(), evaluate=lambda: data(float(evaluated)))
"""
ASSIGNMENT = trial_records.assignment(0)


class Trials:
    """A study of one worker, as its driver sees it.

    Args of the constructor:
        prune_steps: See `TrialAccess`.
    """

    def __init__(self, folder: Path, prune_steps: int | None = None) -> None:
        optuna_module()
        (folder / "program.py").write_text(PROGRAM)
        self._folder = folder
        self._access = TrialAccess(study="s", socket="", metric="loss", prune_steps=prune_steps)
        self._storage = optuna.storages.InMemoryStorage()
        self.study = self._opened()

    def _opened(self) -> optuna.Study:
        return optuna.create_study(
            storage=self._storage,
            study_name="s",
            sampler=optuna.samplers.RandomSampler(),
            pruner=CountedTrialsPruner(min_resource=self._access.prune_steps or 1),
            load_if_exists=True,
        )

    def add(self, steps: int, evaluated: str = "1") -> int:
        """A running trial; returns its number."""
        job = sample_job(steps=steps).model_copy(update={"options": {"evaluated": evaluated}})
        trial = self.study.ask()
        trial.set_user_attr(trial_records.JOB, job.model_dump_json())
        return trial.number

    def assign(self, number: int) -> None:
        """Gives a trial to the worker."""
        self.study.set_user_attr(ASSIGNMENT, self[number]._trial_id)

    def __getitem__(self, number: int) -> optuna.trial.FrozenTrial:
        return self.study.get_trials()[number]

    def await_trial(self, number: int, what: str, done: Callable[[optuna.trial.FrozenTrial], bool]) -> None:
        """Waits until a trial has reached something."""
        wait_until(lambda: self[number], WAIT_SECS, what, done=done)

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Context manager for the worker, on a thread of this process."""
        event = threading.Event()
        stop: Any = SimpleNamespace(event=event, error=lambda: StoppedError(15), end_process=pytest.fail)
        names = {settings.PROGRAM_FOLDER: str(self._folder), settings.INDEX: "0", settings.OUT: str(self._folder)}
        link = FolderLink(self._folder, 0)
        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(service._serve, self._opened(), self._access, settings.read(names), link, stop)
            try:
                yield
            finally:
                event.set()
                with suppress(StoppedError):
                    serving.result()


@pytest.fixture(autouse=True)
def no_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SignsOfLife, "start", lambda self: None)


def test_a_worker_begins_its_next_trial_before_the_end_of_one_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the driver, which has all running trials repeated."""
    monkeypatch.setattr(service, "ASSIGNED_SECS", 0.0)
    trials = Trials(tmp_path)
    given_up, following = trials.add(ENDLESS), trials.add(2)
    with trials.worker():
        trials.assign(given_up)
        trials.await_trial(given_up, "its first step", lambda trial: trial_records.STARTED in trial.user_attrs)
        trials.study.tell(given_up, state=optuna.trial.TrialState.FAIL)
        trials.assign(following)
        trials.await_trial(following, "its end", lambda trial: trial.state.is_finished())
    assert trials[following].state == optuna.trial.TrialState.COMPLETE
    assert trials[given_up].state == optuna.trial.TrialState.FAIL
    assert not trial_records.weights_file(tmp_path, given_up).exists()


def test_a_worker_asks_seldom_for_its_trial_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, 0
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now))
    life: Any = SimpleNamespace(begin=lambda *_: None)

    class Study:
        @property
        def user_attrs(self) -> dict[str, int]:
            nonlocal asked
            asked += 1
            return {ASSIGNMENT: 7}

    study: Any = Study()
    require = service._assignment(study, 0, 7, life)
    for step in range(100):
        now = step / 20
        require()
    assert asked == 4


@pytest.mark.parametrize("evaluated", ["nan", "inf"])
def test_a_trial_whose_objective_is_not_finite_is_pruned_at_the_first_step_at_which_trials_compete(
    tmp_path: Path, evaluated: str
) -> None:
    trials = Trials(tmp_path, prune_steps=2)
    number = trials.add(ENDLESS, evaluated)
    with trials.worker():
        trials.assign(number)
        trials.await_trial(number, "its end", lambda trial: trial.state.is_finished())
    assert trials[number].state == optuna.trial.TrialState.PRUNED
    assert [*trials[number].intermediate_values] == [2]


def test_a_trial_fails_if_its_objective_is_not_finite_at_the_end(tmp_path: Path) -> None:
    trials = Trials(tmp_path, prune_steps=2)
    number = trials.add(2, "nan")
    with trials.worker():
        trials.assign(number)
        trials.await_trial(number, "its end", lambda trial: trial.state.is_finished())
    assert trials[number].state == optuna.trial.TrialState.FAIL
    assert trials[number].user_attrs[trial_records.ERROR] == "loss is nan, expected a finite number"


def test_a_trial_whose_objective_is_not_finite_before_that_step_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(program: Any, job: Any, access: Any, stop: Any, on_first: Any, on_evaluation: Any, *_: Any) -> Any:
        on_evaluation(2, {"loss": float("nan")})
        on_evaluation(4, {"loss": 1.0})
        return SimpleNamespace(metrics={"loss": 1.0}, values={})

    monkeypatch.setattr(service, "train", train)
    trials = Trials(tmp_path, prune_steps=4)
    number = trials.add(4)
    with trials.worker():
        trials.assign(number)
        trials.await_trial(number, "its end", lambda trial: trial.state.is_finished())
    assert trials[number].state == optuna.trial.TrialState.COMPLETE
    assert trials[number].value == 1.0
