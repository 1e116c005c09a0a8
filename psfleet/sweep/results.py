"""The files of a study: `trials.csv`, `best.yaml` with its program, and the weights of the best trials."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from psfleet.errors import ProgramError
from psfleet.files import replace_file
from psfleet.job import trial_records
from psfleet.job.job_fields import MAX_NAME
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.study_file import Study

TRIALS, BEST, REPORT = "trials.csv", "best.yaml", "report.html"
COPIED = ".copied"
"""In a folder with a copy of a study in containers: its platform, and digests of the trials in the copies."""
BEST_SUFFIX = "-best"
"""Ends the name of the best trial's job, after that of the study."""
BEST_PROGRAM = "best_program"
"""Module in the folder of a study that finds the program of its job."""


def best_first(study: Study, trials: list[Any]) -> list[Any]:
    """The complete trials, the best one first; of equal ones the earlier one."""
    return best_of(study.objective.direction, trials)


def best_of(direction: str, trials: list[Any]) -> list[Any]:
    """As `best_first`, of a study whose objective is to `minimize` or to `maximize`."""
    sign = 1 if direction == "minimize" else -1
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    return sorted(complete, key=lambda trial: (sign * trial.value, trial.number))


def none_complete(study: Study, trials: Sequence[Any]) -> ProgramError:
    """The error of a study whose trials have ended without a complete one, with the traceback of one that failed."""
    failed = [trial.user_attrs for trial in trials if trial_records.ERROR in trial.user_attrs]
    what, details = f"all were pruned: {study.objective.metric} was not finite", ""
    if failed:
        what = f"the last one that failed: {failed[-1][trial_records.ERROR]}"
        details = failed[-1].get(trial_records.DETAILS, "")
    return ProgramError(f"study {study.name}: no trial is complete, {what}", details)


def write(loaded: LoadedStudy, folder: Path, trials: list[Any], repeated: Iterable[int] = ()) -> None:
    """Writes all files, and removes the weights of trials that are not among the best.

    Args:
        trials: The finished ones.
        repeated: Numbers of trials that are repeated under others; one may have written its weights before.
    """
    study = loaded.study
    best = best_first(study, trials)
    replace_file(folder / TRIALS, _table(study, trials))
    if best:
        _write_best(loaded, folder, best[0].params)
    kept = {trial_records.weights_file(folder, trial.number) for trial in best[: study.keep]}
    for number in (*(trial.number for trial in trials), *repeated):
        path = trial_records.weights_file(folder, number)
        if path not in kept:
            path.unlink(missing_ok=True)


def _table(study: Study, trials: list[Any]) -> str:
    """One line for each trial: number, state, value, seconds, values of the space, other metrics, error."""
    metrics = sorted({name for trial in trials for name in trial.user_attrs.get(trial_records.METRICS, {})})
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(
        ["trial", "state", study.objective.metric, "secs", *study.space, *(f"metric.{m}" for m in metrics), "error"]
    )
    for trial in trials:
        found = trial.user_attrs.get(trial_records.METRICS, {})
        secs = (trial.datetime_complete - trial.datetime_start).total_seconds()
        values = [trial.params.get(name) for name in study.space]
        state = trial.state.name.lower()
        error = trial.user_attrs.get(trial_records.ERROR)
        rows.writerow([trial.number, state, trial.value, f"{secs:.2f}", *values, *map(found.get, metrics), error])
    return text.getvalue()


def _write_best(loaded: LoadedStudy, folder: Path, values: dict[str, Any]) -> None:
    """A job file of the best trial, whose program is found wherever the job file of the study is.

    Its name is not that of the study's job, whose run folder may have a run with other values.
    """
    content = loaded.content_of(values)
    content["name"] = loaded.study.name[: MAX_NAME - len(BEST_SUFFIX)].rstrip("-") + BEST_SUFFIX
    module, _, name = str(content["program"]).partition(":")
    content["program"] = f"{BEST_PROGRAM}:{name}"
    source = loaded.folder.resolve()
    if module == BEST_PROGRAM and (other := source / f"{BEST_PROGRAM}.py").is_file():
        # Of another study: a module that imports one of its own name would find itself.
        program = other.read_text()
    else:
        program = (
            f'"""Finds the program of the study: `{module}` in the folder of its job file."""\n\n'
            f"import sys\n\nsys.path.insert(1, {str(source)!r})\n\nfrom {module} import {name}  # noqa\n"
        )
    replace_file(folder / f"{BEST_PROGRAM}.py", program)
    replace_file(folder / BEST, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
