"""Takes the trials that the driver of a study assigns to this worker, and reports their results to Optuna's storage."""

from __future__ import annotations

import gc
import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import cast

import grpc
import optuna
import safetensors.numpy

from psfleet.errors import BadJobError, DeadlineError, LostPeerError, PermanentError, PsfleetError, StorageError
from psfleet.files import replace_file
from psfleet.job import trial_records
from psfleet.job.job import job_from_json
from psfleet.job.trial_access import TrialAccess
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from worker_service.build_deadline import DEADLINES
from worker_service.driver_link import DriverLink, linked
from worker_service.trial.kept_program import KeptPrograms
from worker_service.trial.pruner import CountedTrialsPruner
from worker_service.trial.signs_of_life import SignsOfLife
from worker_service.trial.training import train

logger = logging.getLogger("psfleet.worker")

POLL_SECS = 0.05
"""Interval in which an idle worker looks for its next trial."""
ASSIGNED_SECS = 1.0
"""Least interval in which one that trains looks whether it still has its trial."""


def serve(settings: Settings, stop: Stop) -> int:
    """Trains trials until a signal comes; does not return.

    Raises:
        BadJobError: This process has no access to a study.
        LostPeerError: The study's storage is gone.
        StoppedError: A signal stopped this worker.
    """
    access = settings.trials
    if access is None:
        raise BadJobError("PSFLEET_TRIALS is missing, expected access to a study as JSON")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    with linked(settings, stop.end_process) as link, link.storage() as socket:
        try:
            _serve(_opened(access, socket or access.socket), access, settings, link, stop)
        except grpc.RpcError as error:
            raise LostPeerError(f"the storage of study {access.study} is gone: {error.details()}") from error
    # Not exit code 0, with which a program may end this process in a trial.
    raise stop.error()


def _serve(study: optuna.Study, access: TrialAccess, settings: Settings, link: DriverLink, stop: Stop) -> None:
    """Trains one trial after the other until a signal comes."""
    programs, done = KeptPrograms(settings.program_folder), None
    life = SignsOfLife(link.beat, stop.end_process, link.fail)
    life.start()
    while not stop.event.is_set():
        assigned = study.user_attrs.get(trial_records.assignment(settings.index))
        if assigned is None or assigned == done:
            stop.event.wait(POLL_SECS)
            continue
        try:
            # An object of a running trial, with the parameters that the driver has asked for.
            trial = optuna.trial.Trial(study, assigned)
            _train(trial, study, access, programs, link, stop, life, _assignment(study, settings.index, assigned, life))
        except optuna.exceptions.UpdateFinishedTrialError:
            # The driver was started again meanwhile, and has the trial repeated.
            logger.warning("the trial was given up by the driver", extra={"event": "trial_lost"})
        life.begin("the next trial")
        done = assigned
        gc.collect()


def _opened(access: TrialAccess, socket: str) -> optuna.Study:
    storage = optuna.storages.GrpcStorageProxy(host=trial_records.UNIX, port=cast(int, socket))
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if access.prune_steps is not None:
        pruner = CountedTrialsPruner(min_resource=access.prune_steps)
    # The driver asks: the sampler of this study is not used.
    return optuna.load_study(
        study_name=access.study,
        storage=storage,
        sampler=optuna.samplers.RandomSampler(),
        pruner=pruner,
    )


def _train(
    trial: optuna.trial.Trial,
    study: optuna.Study,
    access: TrialAccess,
    programs: KeptPrograms,
    link: DriverLink,
    stop: Stop,
    life: SignsOfLife,
    before_step: Callable[[], None],
) -> None:
    """Trains one trial and reports its result; a failure of the program is that of the trial."""
    logger.info("trial %d", trial.number, extra={"event": "trial", "trial": trial.number})

    def on_evaluation(step: int, metrics: dict[str, float]) -> None:
        value = metrics[access.metric]
        if math.isfinite(value) or access.prune_steps is not None:
            # Optuna prunes a trial that is not a number where trials compete; infinity could win.
            trial.report(value if math.isfinite(value) else math.nan, step)
            if step < job.train.steps and trial.should_prune():
                raise optuna.TrialPruned

    def on_first() -> None:
        trial.set_user_attr(trial_records.STARTED, True)

    job = job_from_json(trial.user_attrs[trial_records.JOB], f"trial {trial.number}")
    try:
        life.begin(f"program {job.program!r} to be loaded and built", DEADLINES * job.deadlines.first_secs)
        trained = train(programs.load(job), job, access, stop, on_first, on_evaluation, life, before_step)
        objective = trained.metrics[access.metric]
        _require_finite(access.metric, objective)
    except optuna.TrialPruned:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return
    except (PermanentError, DeadlineError) as error:
        _fail(trial, study, error)
        return
    path = trial_records.weights_file(link.folder, trial.number)
    # Before the result is reported: a finished trial has its files.
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, safetensors.numpy.save(trained.values))
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    link.deliver(path)
    trial.set_user_attr(trial_records.METRICS, trained.metrics)
    study.tell(trial, objective)


def _assignment(study: optuna.Study, index: int, trial_id: int, life: SignsOfLife) -> Callable[[], None]:
    """A function that raises `UpdateFinishedTrialError` once the driver has given up the trial of this worker."""
    asked = time.monotonic()

    def require() -> None:
        nonlocal asked
        if time.monotonic() - asked < ASSIGNED_SECS:
            return
        # While the driver is lost, this waits for it: one that is started again has the trial repeated in any case.
        life.begin("the assignment of this worker")
        if study.user_attrs.get(trial_records.assignment(index)) != trial_id:
            raise optuna.exceptions.UpdateFinishedTrialError
        asked = time.monotonic()

    return require


def _require_finite(metric: str, value: float) -> None:
    """Raises PermanentError if an objective is not finite."""
    if not math.isfinite(value):
        raise PermanentError(f"{metric} is {value}, expected a finite number")


def _fail(trial: optuna.trial.Trial, study: optuna.Study, error: PsfleetError) -> None:
    logger.warning(
        "trial %d failed: %s", trial.number, error, extra={"event": "trial_failed", "details": error.details}
    )
    trial.set_user_attr(trial_records.ERROR, str(error))
    trial.set_user_attr(trial_records.EXIT_CODE, error.exit_code)
    trial.set_user_attr(trial_records.DETAILS, error.details)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
