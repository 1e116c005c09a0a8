"""The callbacks that a job names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from support.chief_samples import sample_job

from psfleet.callbacks import Callback
from psfleet.callbacks.loading import load_callbacks
from psfleet.errors import BadJobError, ProgramError
from psfleet.job.job import Job


class Printer(Callback):
    """A callback with an option."""

    def __init__(self, every_steps: int = 1) -> None:
        self.every_steps = every_steps


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module with callbacks."""
    made: Any = ModuleType("watching")
    made.Printer, made.number = Printer, lambda: 7
    monkeypatch.setitem(sys.modules, "watching", made)


def job(*callbacks: Any) -> Job:
    return sample_job(callbacks=list(callbacks))


def test_a_job_without_callbacks_has_none() -> None:
    assert load_callbacks(job()) == []


@pytest.mark.usefixtures("module")
def test_callables_of_the_users_modules_are_called_with_their_options() -> None:
    first, second = load_callbacks(job("watching:Printer", {"use": "watching:Printer", "options": {"every_steps": 5}}))
    assert (first.every_steps, second.every_steps) == (1, 5)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("watching:number", "callback watching:number returned int, expected a psfleet.Callback"),
        ("watching:missing", "callback watching:missing raised AttributeError: .*missing"),
        ("nowhere:build", "callback nowhere:build raised ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_is_no_callback_is_refused(use: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        load_callbacks(job(use))


def test_mlflow_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    monkeypatch.delitem(sys.modules, "psfleet.callbacks.mlflow_tracker", raising=False)
    monkeypatch.delattr("psfleet.callbacks.mlflow_tracker", raising=False)
    with pytest.raises(BadJobError, match=r"mlflow needs a package .*pip install 'psfleet\[mlflow\]'"):
        load_callbacks(job("mlflow"))


def test_unknown_options_of_mlflow_are_refused() -> None:
    with pytest.raises(BadJobError, match=r"options \{'server': 1\} do not fit mlflow"):
        load_callbacks(job({"use": "mlflow", "options": {"server": 1}}))


def test_an_address_of_no_mlflow_server_is_refused() -> None:
    with pytest.raises(
        BadJobError, match=r"mlflow: expected the address of an MLflow server in .*tracking_uri.*gopher"
    ):
        load_callbacks(job({"use": "mlflow", "options": {"tracking_uri": "gopher://a"}}))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("every_steps", ["50", 0, None, True, 2.5])
@pytest.mark.parametrize(
    ("use", "options", "error"),
    [("watching:Printer", {}, ProgramError), ("mlflow", {"tracking_uri": "http://localhost:1"}, BadJobError)],
)
def test_a_number_of_steps_that_is_none_is_refused(
    use: str, options: dict[str, Any], error: type[Exception], every_steps: object
) -> None:
    """Not in the middle of training."""
    with pytest.raises(error, match=f"every_steps is {every_steps!r}, expected a positive integer"):
        load_callbacks(job({"use": use, "options": {**options, "every_steps": every_steps}}))


@pytest.mark.parametrize("use", ["wandb", "mlflow:", "a b:c"])
def test_other_texts_are_refused(use: str) -> None:
    with pytest.raises(BadJobError, match=r"callbacks\.0\.use"):
        job(use)
