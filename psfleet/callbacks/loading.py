"""Makes the callbacks that a job names."""

from __future__ import annotations

import importlib
import numbers

from psfleet.callbacks.interface import Callback
from psfleet.errors import BadJobError, ProgramError
from psfleet.job.callback import MLFLOW, CallbackSpec
from psfleet.job.job import Job
from psfleet.job.user_code import user_code

EXPECTED = "expected a positive integer"
EXPECTED_SERVER = "expected the address of an MLflow server in the option tracking_uri or in MLFLOW_TRACKING_URI"


def load_callbacks(job: Job) -> list[Callback]:
    """Makes the callbacks of a job, whose program is loaded: its folder is searched first.

    Raises:
        BadJobError: `mlflow` is named, and MLflow is not installed.
        ProgramError: A callable does not exist, raised an exception, or returned something else.
    """
    return [_mlflow(spec) if spec.use == MLFLOW else _of_program(job, spec) for spec in job.callbacks]


def _mlflow(spec: CallbackSpec) -> Callback:
    try:
        from psfleet.callbacks.mlflow_tracker import MLflowTracker
    except ImportError as error:
        raise BadJobError(f"callbacks: mlflow needs a package ({error}): pip install 'psfleet[mlflow]'") from error
    try:
        made = MLflowTracker(**spec.options)
    except TypeError as error:
        raise BadJobError(f"callbacks: options {spec.options} do not fit mlflow: {error}") from error
    except Exception as error:
        # Of MLflow: the address of its server is none, or of a kind that needs other packages.
        raise BadJobError(f"callbacks: mlflow: {EXPECTED_SERVER}: {str(error).strip()}") from error
    if not _is_number_of_steps(made.every_steps):
        raise BadJobError(f"callbacks: mlflow: every_steps is {made.every_steps!r}, {EXPECTED}")
    return made


def _of_program(job: Job, spec: CallbackSpec) -> Callback:
    module_name, _, name = spec.use.partition(":")
    with user_code(job, f"callback {spec.use}"):
        made = getattr(importlib.import_module(module_name), name)(**spec.options)
    if not isinstance(made, Callback):
        raise ProgramError(
            f"program {job.program!r}: callback {spec.use} returned {type(made).__name__}, expected a psfleet.Callback"
        )
    if not _is_number_of_steps(made.every_steps):
        raise ProgramError(
            f"program {job.program!r}: callback {spec.use}: every_steps is {made.every_steps!r}, {EXPECTED}"
        )
    return made


def _is_number_of_steps(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1
