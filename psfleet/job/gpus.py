"""The job file's fields for GPUs and for several devices of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from psfleet.job.fields import NonNegativeInt, PositiveInt, Section

AUTO = "auto"


def _checked_replicas(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value != AUTO and not is_number:
        raise ValueError(f"{value!r}, expected {AUTO} or an integer of at least 1")
    return value


Replicas = Annotated[PositiveInt | Literal["auto"], BeforeValidator(_checked_replicas)]


class VisibleGpus(Section):
    """Which GPUs the processes of a role use. A ps sees none."""

    worker: list[list[NonNegativeInt]] = Field(
        default_factory=list,
        description="GPUs of each worker by its index, for example `[[0, 1], [2, 3]]`: numbers in the order in which "
        "its machine or container shows them. A worker behind the end of the list sees none. Empty: each worker sees "
        "all. At most one list for each worker and spare, or for each of `fleet.max_workers`.",
    )

    @field_validator("worker")
    @classmethod
    def _check_worker(cls, worker: list[list[int]]) -> list[list[int]]:
        for index, gpus in enumerate(worker):
            if len(set(gpus)) < len(gpus):
                raise ValueError(f"worker {index} has {gpus}, expected each GPU once")
        return worker


def require_workers(visible: Sequence[Sequence[int]], num_workers: int, expected: str) -> None:
    """Refuses lists of GPUs for workers that do not exist.

    Args:
        visible: `device.visible_gpus.worker`.
        num_workers: The largest number of workers.
        expected: How the file says that number.

    Raises:
        ValueError: Names the field, the number of lists and what was expected.
    """
    if len(visible) > num_workers:
        raise ValueError(
            f"device.visible_gpus.worker has {len(visible)} lists, expected at most one for each worker: {expected} = "
            f"{num_workers}"
        )


def require_towers(
    replicas: int | str,
    virtual_cpus: int | None,
    visible: Sequence[Sequence[int]],
    *,
    batch_size: int,
    num_workers: int,
    is_in_graph: bool,
) -> None:
    """Refuses numbers of towers that do not fit the batch or the devices that the job gives to a worker.

    Args:
        replicas: `device.replicas`.
        virtual_cpus: `device.virtual_cpus`.
        visible: `device.visible_gpus.worker`.
        batch_size: `train.batch_size`.
        num_workers: Number of workers and spares.
        is_in_graph: Whether worker 0 builds the graph of every worker.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if not isinstance(replicas, int):
        if is_in_graph:
            raise ValueError(
                f"device.replicas is {replicas}, expected a number with update.replication in_graph: worker 0 builds "
                "the towers of all workers, and does not know their devices"
            )
        if virtual_cpus is not None and batch_size % virtual_cpus:
            raise ValueError(
                f"train.batch_size is {batch_size}, expected a multiple of device.virtual_cpus = {virtual_cpus} with "
                f"device.replicas {replicas}"
            )
        return
    if batch_size % replicas:
        raise ValueError(f"train.batch_size is {batch_size}, expected a multiple of device.replicas = {replicas}")
    if virtual_cpus is not None:
        if replicas > virtual_cpus:
            raise ValueError(
                f"device.replicas is {replicas}, expected at most the number of devices, device.virtual_cpus = "
                f"{virtual_cpus}"
            )
        return
    for index in range(num_workers if visible else 0):
        gpus = visible[index] if index < len(visible) else []
        if replicas > max(len(gpus), 1):
            raise ValueError(
                f"device.replicas is {replicas}, expected at most the number of devices: device.visible_gpus gives "
                f"worker {index} {len(gpus)} GPUs"
            )
