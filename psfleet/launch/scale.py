"""Changes the number of workers or loaders of a fleet that trains, on any platform."""

from __future__ import annotations

from psfleet.errors import UsageError
from psfleet.job.activity import named
from psfleet.job.job import Job
from psfleet.launch.platform import Platform, chief_of
from psfleet.launch.shown import require


def scale(platform: Platform, name: str, workers: int | None = None, loaders: int | None = None) -> None:
    """Changes the number of workers and spares together, and that of loaders, of a fleet that trains; None keeps it.

    Raises:
        UsageError: It does not train, or one of the numbers is not possible for its job. Nothing has changed.
    """
    job = _trained_job(platform, name)
    if workers is not None:
        _check_workers(job, workers)
    if loaders is not None:
        _check_loaders(job, loaders)
    if workers is not None:
        platform.scale(job, workers)
    if loaders is not None:
        platform.scale_loaders(job, loaders)


def _check_workers(job: Job, workers: int) -> None:
    """Raises UsageError if they are too few for a step or more than the job allows."""
    has_parts = job.fleet.parts > 1
    # Which process a platform ends is not known: it can be a part of any replica.
    least, most = job.fleet.processes if has_parts else job.least_workers, job.most_workers
    if not least <= workers <= most:
        limit = "the workers of its graphs" if has_parts or job.update.is_in_graph else "fleet.max_workers"
        limit = "the workers, each of which is a ps" if job.fleet.colocate else limit
        raise UsageError(f"--workers {workers}: expected {least} to {most}, the least that make a step and {limit}")


def _check_loaders(job: Job, loaders: int) -> None:
    """Raises UsageError if it has no loaders, or their number is fixed or not in the range that the job allows."""
    if not job.input.num_loaders:
        raise UsageError(f"--loaders {loaders}: input.from is {job.input.source}, expected loaders")
    if job.input.is_dynamic:
        raise UsageError(
            f"--loaders {loaders}: input.sharding is dynamic, expected static: each loader has a part of the data set"
        )
    if loaders > job.most_loaders:
        raise UsageError(f"--loaders {loaders}: expected 1 to {job.most_loaders}, fleet.max_workers")


def _trained_job(platform: Platform, name: str) -> Job:
    """The job of a fleet that trains."""
    chief = chief_of(require(platform, name))
    if chief is None or chief.is_over:
        raise UsageError(f"fleet {name} does not run, expected one that trains")
    if chief.activity:
        raise UsageError(f"fleet {name} is {named(chief.activity)}, expected a training run")
    return platform.job(name)
