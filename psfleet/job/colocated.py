"""Colocated ps in the job file: each worker's process is a ps, too."""

from __future__ import annotations

from psfleet.job.sections import Fleet


def require_colocated(fleet: Fleet, is_in_graph: bool) -> None:
    """Refuses what a fleet cannot do whose workers are its ps.

    A step needs every ps and thereby every worker: a spare could replace none, and none can be added or removed.

    Args:
        is_in_graph: Whether `update.replication` is in_graph.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if not fleet.colocate:
        return
    if fleet.ps != fleet.workers:
        raise ValueError(
            f"fleet.ps is {fleet.ps}, expected fleet.workers = {fleet.workers} with fleet.colocate: each worker is a ps"
        )
    if fleet.spares:
        raise ValueError(
            f"fleet.spares is {fleet.spares}, expected 0 with fleet.colocate: a step needs the ps of every worker"
        )
    if fleet.max_workers not in (None, fleet.workers):
        raise ValueError(
            f"fleet.max_workers is {fleet.max_workers}, expected null with fleet.colocate: the fleet is not scaled"
        )
    if fleet.parts > 1:
        raise ValueError(f"fleet.parts is {fleet.parts}, expected 1 with fleet.colocate")
    if fleet.ps_addresses is not None:
        raise ValueError("fleet.ps_addresses is set, expected null with fleet.colocate: the ps are the workers")
    if is_in_graph:
        raise ValueError("update.replication is in_graph, expected between_graph with fleet.colocate")
