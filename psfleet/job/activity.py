"""What a fleet in containers does instead of training: a driver in the chief's container, and workers that join it."""

from __future__ import annotations

from typing import ClassVar

from psfleet.job.access import Access
from psfleet.job.service_plan import ServicePlan

SERVICE = "service"
"""Kind of a fleet that serves models; its driver is the front, its workers are the members."""
OF_SERVICE = {"chief": "front", "worker": "member"}


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
        service: What a service consists of; None: it is something else.
    """

    DESCRIPTION: ClassVar[str] = "an activity of a fleet"

    kind: str
    driver: str
    worker: str
    driver_variables: dict[str, str]
    worker_variables: dict[str, str]
    model_folder: str = ""
    model_fleet: str = ""
    service: ServicePlan | None = None


def kind_of(activity: Activity | None) -> str:
    """The kind of an activity; empty: training."""
    return "" if activity is None else activity.kind


def named(kind: str) -> str:
    """A kind of activity for messages."""
    return f"a {kind}" if kind else "a training run"


def shown_role(kind: str, role: str) -> str:
    """The role of a member of a fleet for readers: in a service, chief and worker are front and member."""
    return OF_SERVICE.get(role, role) if kind == SERVICE else role
