"""The study file: which job is trained with which settings, and what is searched."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from psfleet.job.fields import NonNegativeInt, PositiveInt, Real, Section
from psfleet.job.job_fields import MAX_NAME, NAME_PATTERN

SECTIONS = ("options", "optimizer", "train", "input")
"""Sections of the job whose fields a study may vary."""
MAX_LIMIT = 2**53
"""Largest integer of a space: Optuna keeps integers as floats."""
MAX_GRID = 100_000
"""Combinations of a grid, all of which Optuna holds in memory."""
Choice = str | int | float | bool | None


class Dimension(Section):
    """The values of one field: exactly one of `float`, `int` and `choice`."""

    float_: list[Real] | None = Field(
        None, alias="float", min_length=2, max_length=2, description="Lowest and highest number."
    )
    int_: list[int] | None = Field(
        None, alias="int", min_length=2, max_length=2, description="Lowest and highest integer, both included."
    )
    choice: list[Choice] | None = Field(None, min_length=1, description="The values: numbers, texts, booleans or null.")
    log: bool = Field(False, description="Whether numbers are searched on a logarithmic scale.")

    @model_validator(mode="after")
    def _consistent(self) -> Dimension:
        given = [value for value in (self.float_, self.int_, self.choice) if value is not None]
        if len(given) != 1:
            raise ValueError("expected exactly one of float, int and choice")
        values = self.choice or []
        if twice := [value for at, value in enumerate(values) if value in values[:at]]:
            raise ValueError(f"choice has {twice[0]!r} twice, expected different values")
        limits = self.float_ or self.int_
        if limits is None:
            if self.log:
                raise ValueError("log is true, expected float or int with it")
            return self
        low, high = limits
        # Optuna samples floats, and the width of the range must be one.
        if max(abs(low), abs(high)) > MAX_LIMIT if self.int_ else math.isinf(high - low):
            raise ValueError(
                f"limits are {limits}, expected {f'at most {MAX_LIMIT}' if self.int_ else 'a finite range'}"
            )
        if low > high or (self.log and low <= 0):
            raise ValueError(f"limits are {limits}, expected ascending numbers{' above 0 with log' * self.log}")
        return self

    @property
    def num_values(self) -> int:
        """The number of values, for a grid."""
        return self.int_[1] - self.int_[0] + 1 if self.int_ else len(self.choice or ())

    @property
    def samples(self) -> list[Choice]:
        """Values of which each must be valid for the job: the limits, or all choices."""
        return [*(self.float_ or self.int_ or self.choice or ())]


class Objective(Section):
    """What is searched for."""

    metric: str = Field(description="Name of a metric of the program's evaluation.")
    direction: Literal["minimize", "maximize"] = Field(description="Whether lower or higher values are better.")


class Search(Section):
    """How values are chosen, by a sampler of Optuna."""

    kind: Literal["grid", "random", "tpe"] = Field(
        description="`grid`: all combinations; `random`: independent values; `tpe`: a tree-structured Parzen "
        "estimator, which learns from finished trials."
    )
    trials: PositiveInt | None = Field(
        None, description="Number of trials; required, except for `grid`, where null means all combinations."
    )
    seed: NonNegativeInt = Field(0, description="Random seed of the search.")


class Prune(Section):
    """Whether trials end early that are worse than others at the same step."""

    kind: Literal["none", "asha"] = Field(
        "none",
        description="`asha`: asynchronous successive halving (Li et al. 2018): of the trials that have reached "
        "`every_steps`, 4 times, 16 times as many steps and so on, the best quarter continues.",
    )
    every_steps: PositiveInt | None = Field(
        None, description="Steps between evaluations of a trial, in addition to `evaluate.every_steps`; for `asha`."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Prune:
        if (self.kind == "asha") != (self.every_steps is not None):
            raise ValueError("expected every_steps with asha, and only with it")
        return self


class StudyFleet(Section):
    """The workers of a study."""

    workers: PositiveInt = Field(1, description="Number of trials that run at the same time, one on each worker.")


class Study(Section):
    """Trials of a job with different settings."""

    name: str = Field(
        pattern=NAME_PATTERN, max_length=MAX_NAME, description="Name of the study: its results are in `studies/NAME`."
    )
    job: str = Field(description="The job file, relative to the study file.")
    space: dict[str, Dimension] = Field(min_length=1, description="Values by dotted fields of the job.")
    objective: Objective = Field(description="What is searched for.")
    search: Search = Field(description="How values are chosen.")
    prune: Prune = Field(default_factory=Prune, description="Which trials end early.")
    keep: PositiveInt = Field(5, description="Number of best trials whose weights are kept.")
    fleet: StudyFleet = Field(default_factory=StudyFleet, description="The workers.")

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        for name, dimension in self.space.items():
            section, *fields = name.split(".")
            if section not in SECTIONS or not fields or not all(field.strip() for field in fields):
                raise ValueError(f"space.{name}: expected a field of {', '.join(SECTIONS)}")
            if self.search.kind == "grid" and dimension.float_ is not None:
                raise ValueError(f"space.{name}: a grid has no float, expected choice or int")
        if self.search.kind != "grid" and self.search.trials is None:
            raise ValueError("search.trials: missing, expected a number of trials")
        if self.search.kind == "grid" and self.num_combinations > MAX_GRID:
            raise ValueError(f"a grid of {self.num_combinations} combinations, expected at most {MAX_GRID}")
        return self

    @property
    def num_combinations(self) -> int:
        """The size of a grid."""
        return math.prod(dimension.num_values for dimension in self.space.values())
