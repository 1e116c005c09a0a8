"""The metrics of the evaluations that a job watches: their effect on the run, and checks of their names."""

from __future__ import annotations

from collections.abc import Collection

from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.monitored import is_loss


def evaluations_decide(job: Job) -> bool:
    """Whether the recorded evaluations decide how training continues: when it ends, or at which learning rate."""
    return bool(job.monitored.keys() - {"checkpoint.best"})


def main_metric(job: Job | None, names: Collection[str]) -> str:
    """The metric that stands for a run where only one is shown; empty if there is none.

    The one that the job watches for its best checkpoint, or for its end; or else accuracy, the first one that is no
    loss, or the loss.

    Args:
        job: None: it is not known.
        names: Of the metrics of an evaluation.
    """
    watched = {} if job is None else job.monitored
    wanted = [watched[section].metric for section in ("checkpoint.best", "evaluate.stop") if section in watched]
    others = [name for name in names if not is_loss(name)]
    return next((name for name in [*wanted, "accuracy", *others, "loss", *names] if name in names), "")


def require_evaluation(job: Job, is_evaluated: bool) -> None:
    """Refuses a job that watches a metric of a program without evaluation data.

    Raises:
        BadJobError: `is_evaluated` is false.
    """
    if not is_evaluated and (names := job.monitored):
        raise BadJobError(
            f"{' and '.join(names)} need evaluations, but program {job.program!r} has no evaluation data; expected "
            "a program with `evaluate`"
        )


def require_metrics(job: Job, names: Collection[str]) -> None:
    """Refuses a job that watches a metric that the evaluations do not have.

    Raises:
        BadJobError: Names the metrics there are.
    """
    for section, watched in job.monitored.items():
        if watched.metric not in names:
            raise BadJobError(
                f"{section}.metric is {watched.metric!r}, expected one of the program's metrics: "
                f"{', '.join(sorted(names)) or 'there are none'}"
            )
