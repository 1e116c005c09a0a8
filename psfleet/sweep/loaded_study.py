"""A study file that was read, and the job of each of its trials."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.optimizer import Plateau
from psfleet.job.problems import problem
from psfleet.job.reading import path_loader, read_mapping, without_workers
from psfleet.job.sections import Deadlines
from psfleet.sweep.study_file import Choice, Study

IGNORED = ("fleet", "update", "checkpoint", "callbacks")
"""Sections of the job that a trial has not: it is one worker without ps."""


@dataclass(frozen=True)
class LoadedStudy:
    """A study whose job was read and checked.

    Attributes:
        study: The study file.
        job: The content of the job file, of which a trial changes fields.
        folder: The job file's, which is searched first for the program.
    """

    study: Study
    job: Mapping[str, Any]
    folder: Path

    def to_json(self) -> str:
        """The study without its folder, for a driver that has no study file."""
        return json.dumps({"study": self.study.model_dump(mode="json", by_alias=True), "job": self.job})

    @classmethod
    def from_json(cls, text: str, folder: Path) -> LoadedStudy:
        """The inverse of `to_json`.

        Raises:
            BadJobError: The text is something else.
        """
        try:
            content = json.loads(text)
            return cls(Study.model_validate(content["study"]), content["job"], folder)
        except (ValueError, KeyError, TypeError) as error:
            raise BadJobError("PSFLEET_STUDY: expected a study as JSON") from error

    @property
    def deadlines(self) -> Deadlines:
        """Of the job; the same for all trials."""
        return Deadlines.model_validate(self.job.get("deadlines", {}))

    def job_of(self, values: Mapping[str, Any]) -> Job:
        """The job of a trial.

        Args:
            values: By dotted fields.

        Raises:
            BadJobError: It is not valid, or a trial cannot train it.
        """
        job = parse_job(self.content_of(values), self.study.job)
        _require_trainable(job)
        return job

    def first_content(self) -> dict[str, Any]:
        """As `content_of`, with the first value of each field of the space: of a job that stands for all trials."""
        return self.content_of({name: dimension.samples[0] for name, dimension in self.study.space.items()})

    def content_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the job file of a trial, with one worker and one ps; `values` as for `job_of`."""
        kept = {key: copy.deepcopy(value) for key, value in self.job.items() if key not in IGNORED}
        content = without_workers(kept)
        for name, value in values.items():
            *sections, last = name.split(".")
            inner = content
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise BadJobError(f"space.{name}: {section} of the job is {inner!r}, expected a section")
            inner[last] = value
        return content


def load_study(path: Path) -> LoadedStudy:
    """Reads and validates a study file and its job.

    Raises:
        UsageError: A file cannot be read.
        BadJobError: One is not valid, a value of the space is not valid for the job, or a trial cannot train the job.
    """
    content = read_mapping(path, "study file")
    if "program" in content and "space" not in content:
        raise BadJobError(f"{path} is a job file, expected a study file")
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        raise BadJobError(f"{path}: {'; '.join(problem(item, Study) for item in error.errors())}") from error
    named = path.parent / study.job
    job = named.parent.resolve() / named.name
    if not job.is_file():
        raise UsageError(f"{path}: job is {study.job!r}, and there is no file {job}")
    loaded = LoadedStudy(study, read_mapping(job, "job file", path_loader(job.parent)), job.parent)
    _check_space(loaded, path)
    return loaded


def _check_space(loaded: LoadedStudy, path: Path) -> None:
    """Checks each limit and choice in a job whose other fields have their first value."""
    first = {name: dimension.samples[0] for name, dimension in loaded.study.space.items()}
    for name, dimension in loaded.study.space.items():
        for value in dimension.samples:
            try:
                loaded.job_of({**first, name: value})
            except BadJobError as error:
                blamed = _blamed(loaded, {name: value} | first | {name: value}, str(error))
                raise BadJobError(f"{path}: {blamed}{error}") from error


def _blamed(loaded: LoadedStudy, values: dict[str, Choice], problem: str) -> str:
    """The value by which a job is not valid, for a message: the first one that is not valid alone, or else the first.

    Returns:
        Ends with a colon; empty if the job is not valid without any of them.
    """
    if _problem(loaded, {}) == problem:
        return ""
    names = [name for name, value in values.items() if _problem(loaded, {name: value}) == problem] or list(values)
    return f"with space.{names[0]} = {values[names[0]]!r}: "


def _problem(loaded: LoadedStudy, values: dict[str, Choice]) -> str:
    """Why the job of a trial is not valid; empty if it is."""
    try:
        loaded.job_of(values)
    except BadJobError as error:
        return str(error)
    return ""


def _require_trainable(job: Job) -> None:
    """Refuses what needs ps or a chief; raises BadJobError."""
    refused = {
        "tables": bool(job.tables),
        "optimizers": job.optimizers is not None,
        "evaluate.stop": job.evaluate.stop is not None,
        "optimizer.schedule.kind plateau": isinstance(job.schedule, Plateau),
        "device.replicas": job.device.replicas != 1,
    }
    for name, is_there in refused.items():
        if is_there:
            raise BadJobError(f"{name} is set, expected a job without it: a trial is one worker without ps")
