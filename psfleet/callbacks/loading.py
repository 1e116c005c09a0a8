"""Makes the callbacks that a job names."""

from __future__ import annotations

import importlib

from psfleet.callbacks.interface import Callback
from psfleet.errors import BadJobError, ProgramError
from psfleet.job.callback import MLFLOW, CallbackSpec
from psfleet.job.job import Job
from psfleet.job.user_code import user_code


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
        return MLflowTracker(**spec.options)
    except TypeError as error:
        raise BadJobError(f"callbacks: options {spec.options} do not fit mlflow: {error}") from error
    except Exception as error:
        # Of MLflow: the address of its server is none, or of a kind that needs other packages.
        raise BadJobError(f"callbacks: mlflow: {error}") from error


def _of_program(job: Job, spec: CallbackSpec) -> Callback:
    module_name, _, name = spec.use.partition(":")
    with user_code(job, f"callback {spec.use}"):
        made = getattr(importlib.import_module(module_name), name)(**spec.options)
    if not isinstance(made, Callback):
        raise ProgramError(
            f"program {job.program!r}: callback {spec.use} returned {type(made).__name__}, expected a psfleet.Callback"
        )
    return made
