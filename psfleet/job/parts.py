"""Model parallelism in the job file: replicas of several workers."""

from __future__ import annotations

from psfleet.job.fleet import Fleet


def require_parts(fleet: Fleet, quorum: int | None, towers: int | str) -> None:
    """Refuses what replicas of several parts cannot do.

    Args:
        quorum: `update.quorum`.
        towers: `device.replicas`.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    parts = fleet.parts
    if fleet.workers % parts:
        raise ValueError(f"fleet.workers is {fleet.workers}, expected a multiple of fleet.parts = {parts}")
    if parts == 1:
        return
    if fleet.spares:
        raise ValueError(
            f"fleet.spares is {fleet.spares}, expected 0 with fleet.parts = {parts}: a spare is one worker, and a "
            f"replica {parts}"
        )
    if fleet.max_workers not in (None, fleet.workers):
        raise ValueError(
            f"fleet.max_workers is {fleet.max_workers}, expected null with fleet.parts = {parts}: the fleet is not "
            "scaled"
        )
    if quorum is not None and quorum > fleet.replicas:
        raise ValueError(
            f"update.quorum is {quorum}, expected at most fleet.workers / fleet.parts = {fleet.replicas}, the number "
            "of replicas"
        )
    if towers != 1:
        raise ValueError(
            f"device.replicas is {towers}, expected 1 with fleet.parts = {parts}: a program assigns its operations to "
            "the parts, each of which has one device"
        )
