"""The driver of a study, with workers that finish their trials when a test says so."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from support.study_samples import loaded

from psfleet.errors import BAD_JOB, PROGRAM_FAILED, ProgramError, PsfleetError
from psfleet.job import trial_records
from psfleet.sweep import report_file, results
from psfleet.sweep.driver import Listener, Progress, sweep
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.storage import StoredStudy


class IdleWorker:
    """A worker that lives, and does nothing by itself."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._signs = itertools.count()

    def start(self, cause: str = "") -> None:
        """See `Worker`."""

    def is_there(self) -> bool:
        """See `Worker`."""
        return True

    def exit_code(self) -> int | None:
        """See `Worker`."""
        return None

    def failure(self) -> dict[str, Any] | None:
        """See `Worker`."""
        return None

    def cause_of_end(self) -> str:
        """See `Worker`."""
        return ""

    def newest_sign(self) -> object:
        """See `Worker`."""
        return next(self._signs)

    def kill(self) -> None:
        """See `Worker`."""

    def close(self) -> None:
        """See `Worker`."""


@contextmanager
def idle(of: LoadedStudy, out: Path, socket: str, number: int) -> Iterator[Sequence[IdleWorker]]:
    yield [IdleWorker(index) for index in range(number)]


def fail(stored: StoredStudy, number: int, code: int = PROGRAM_FAILED) -> None:
    """Fails a trial as a worker does whose program raises."""
    trial = optuna.trial.Trial(stored.study, stored.study.trials[number]._trial_id)
    for name, value in (("error", f"trial {number} raised"), ("exit_code", code), ("details", f"line {number}\n")):
        trial.set_user_attr(name, value)
    stored.study.sampler = optuna.samplers.RandomSampler()
    stored.study.tell(number, state=optuna.trial.TrialState.FAIL)


def driven(
    tmp_path: Path,
    outcomes: dict[int, str],
    number: int,
    workers: int = 1,
    listener: Listener | None = None,
    check: Callable[[], None] = lambda: None,
) -> Progress:
    """A study of so many trials, of which those that run end as `outcomes` says: "fails", "bad job" or "completes"."""
    rates = [0.01 * (1 + each) for each in range(number)]
    space = {"optimizer.learning_rate": {"choice": rates}}
    study = loaded(tmp_path, space=space, fleet={"workers": workers})
    (tmp_path / "program.py").write_text("")

    def end() -> None:
        check()
        stored = StoredStudy(study, tmp_path / "studies")
        for trial in stored.trials():
            if trial.state.name != "RUNNING" or trial.number not in outcomes:
                continue
            if outcomes[trial.number] == "completes":
                optuna.trial.Trial(stored.study, trial._trial_id).set_user_attr(trial_records.STARTED, True)
                stored.study.sampler = optuna.samplers.RandomSampler()
                stored.study.tell(trial.number, 1.0)
            else:
                fail(stored, trial.number, BAD_JOB if outcomes[trial.number] == "bad job" else PROGRAM_FAILED)

    return sweep(study, tmp_path / "studies", listener=listener, recruit=idle, check=end)


def test_a_program_that_fails_for_the_first_values_fails_these_trials_alone(tmp_path: Path) -> None:
    found = driven(tmp_path, {0: "fails", 1: "fails", 2: "completes", 3: "fails"}, 4)
    assert [trial.state.name for trial in found.finished] == ["FAIL", "FAIL", "COMPLETE", "FAIL"]


@pytest.mark.parametrize(("number", "workers", "last"), [(8, 1, 2), (8, 4, 3), (2, 1, 1), (2, 4, 1)])
def test_a_program_that_fails_in_all_first_trials_ends_the_study_with_its_traceback(
    tmp_path: Path, number: int, workers: int, last: int
) -> None:
    with pytest.raises(PsfleetError) as error:
        driven(tmp_path, dict.fromkeys(range(last + 1), "fails"), number, workers)
    assert error.value.exit_code == PROGRAM_FAILED
    assert "raised" in str(error.value)
    assert error.value.details.startswith("line ")
    outcomes = dict.fromkeys(range(last + 1, 100), "completes")
    found = driven(tmp_path, outcomes, number, workers)
    assert len(found.best) == number, "all are repeated once the program is mended"


def test_a_metric_that_is_not_reported_ends_the_study_at_once(tmp_path: Path) -> None:
    with pytest.raises(PsfleetError) as error:
        driven(tmp_path, {0: "bad job"}, 8)
    assert error.value.exit_code == BAD_JOB


def test_a_study_without_a_complete_trial_ends_with_the_traceback_of_the_last_one(tmp_path: Path) -> None:
    study = loaded(tmp_path)
    stored = StoredStudy(study, tmp_path)
    for number in range(2):
        trial = stored.ask(2)
        trial.set_user_attr(trial_records.STARTED, True)
        fail(stored, number)
    (tmp_path / "program.py").write_text("")
    with pytest.raises(ProgramError, match="no trial is complete, the last one that failed: trial 1 raised") as error:
        sweep(study, tmp_path, recruit=idle)
    assert error.value.details == "line 1\n"


def test_a_study_whose_trials_are_all_pruned_says_why(tmp_path: Path) -> None:
    """Those that compete have one that stays, unless none has a finite objective."""
    study = loaded(tmp_path)
    stored = StoredStudy(study, tmp_path)
    for number in range(2):
        stored.ask(2).set_user_attr(trial_records.STARTED, True)
        stored.study.sampler = optuna.samplers.RandomSampler()
        stored.study.tell(number, state=optuna.trial.TrialState.PRUNED)
    with pytest.raises(ProgramError, match=f"all were pruned: {study.study.objective.metric} was not finite"):
        sweep(study, tmp_path, recruit=idle)


def test_the_listener_learns_what_is_started_and_what_has_finished_before(tmp_path: Path) -> None:
    starts: list[tuple[int, int, int]] = []

    class Starts(Listener):
        def starting(self, progress: Progress, workers: int) -> None:
            starts.append((len(progress.finished), progress.total, workers))

        def finished(self, trial: Any, progress: Progress) -> None:
            if len(starts) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driven(tmp_path, {0: "completes"}, 2, listener=Starts())
    driven(tmp_path, {1: "completes"}, 2, listener=Starts())
    driven(tmp_path, {}, 2, listener=Starts())
    assert starts == [(0, 2, 1), (1, 2, 1)], "nothing is started for a study that is complete"


def test_trials_that_finish_at_once_are_counted_one_by_one(tmp_path: Path) -> None:
    study, folder = loaded(tmp_path), tmp_path / "studies"
    lines: list[tuple[int, int, float]] = []

    class Lines(Listener):
        def finished(self, trial: Any, progress: Progress) -> None:
            lines.append((trial.number, len(progress.finished), progress.best[0].value))

    def finish_both() -> None:
        """Called once both trials are given to workers."""
        stored = StoredStudy(study, folder)
        stored.study.sampler = optuna.samplers.RandomSampler()
        for trial in stored.trials():
            stored.study.tell(trial.number, 2.0 - trial.number)

    (tmp_path / "program.py").write_text("")
    found = sweep(study, folder, listener=Lines(), recruit=idle, check=finish_both)
    assert lines == [(0, 1, 2.0), (1, 2, 1.0)]
    assert len(found.finished) == 2


def test_the_page_has_each_finished_trial_soon_also_if_the_others_run_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_file, "PAGE_SECS", 2.0)
    outcomes = {0: "completes"}
    deadline = time.monotonic() + 60

    def await_page() -> None:
        assert time.monotonic() < deadline, "the page has not the second trial"
        page = tmp_path / "studies" / results.REPORT
        for number in (1, 2):
            if page.exists() and f"{number} of 3" in page.read_text():
                outcomes[number] = "completes"

    assert len(driven(tmp_path, outcomes, 3, workers=3, check=await_page).best) == 3
