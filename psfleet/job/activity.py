"""What a fleet in containers does instead of training: a driver in the chief's container, and workers that join it."""

from __future__ import annotations

from typing import ClassVar

from psfleet.job.access import Access


class Activity(Access):
    """What a fleet without ps does.

    The driver may have the folder of a model, which its container mounts read only at `container.MODEL`.

    Attributes:
        kind: What is driven, in one word: study.
        driver: The module that the chief's container runs.
        worker: The module that each of the other containers runs.
        driver_variables: Environment of the driver, beside that of every container.
        worker_variables: Environment of each worker, beside that of every container and the driver's address.
        model_folder: The folder of the model, on this machine, which only docker compose can mount; empty: it is not
            there.
        model_fleet: The fleet whose results are the folder of the model; empty: none.
    """

    DESCRIPTION: ClassVar[str] = "an activity of a fleet"

    kind: str
    driver: str
    worker: str
    driver_variables: dict[str, str]
    worker_variables: dict[str, str]
    model_folder: str = ""
    model_fleet: str = ""


def kind_of(activity: Activity | None) -> str:
    """The kind of an activity; empty: training."""
    return "" if activity is None else activity.kind


def named(kind: str) -> str:
    """A kind of activity for messages."""
    return f"a {kind}" if kind else "a training run"
