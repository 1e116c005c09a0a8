"""Sections of the report that come from the states of the ps."""

from __future__ import annotations

from collections.abc import Mapping

from psfleet.control import control_pb2 as pb
from psfleet.report.measurements import Gradients, Placement, PsGradients, WorkerGradients
from worker_service.fleet_state import States


def gradients_of(states: States, examples_per_sec: Mapping[int, float]) -> Gradients:
    """Counts of gradients: ps 0's as the run's, and those of each ps, because each chooses its quorum on its own.

    Those of a ps that cannot be reached are zeros.
    """
    known = [state for state in states if state is not None]
    if not known:
        return Gradients()
    per_ps = [_of_ps(state) for state in states]
    per_worker = {} if states[0] is None else _per_worker(states[0], examples_per_sec)
    # One that has lost its shard has 0.
    since = max(state.first_step for state in known)
    return Gradients(**per_ps[0].model_dump(), since_step=since, per_worker=per_worker, per_ps=per_ps)


def _of_ps(state: pb.ShardState | None) -> PsGradients:
    if state is None:
        return PsGradients()
    pushed, used = sum(_pushed(state)), sum(state.used)
    return PsGradients(pushed=pushed, used=used, dropped=pushed - used)


def _per_worker(state: pb.ShardState, examples_per_sec: Mapping[int, float]) -> dict[str, WorkerGradients]:
    pushed, used = _pushed(state), state.used
    joined = {worker.index for worker in state.workers}
    return {
        str(index): WorkerGradients(
            pushed=pushed[index],
            used=used[index],
            examples_per_sec=examples_per_sec.get(index),
        )
        for index in sorted(joined)
        if index < len(pushed)
    }


def _pushed(state: pb.ShardState) -> list[int]:
    """By worker index, the gradients that were pushed: at least those that were used, which a ps reads later."""
    return [max(pair) for pair in zip(state.pushed, state.used, strict=True)]


def placement_of(states: States) -> Placement:
    """Bytes of the model on each ps; 0 for one that cannot be reached or has lost its shard."""
    sizes = [0 if state is None else state.model_bytes for state in states]
    known = [size for size in sizes if size]
    if not known:
        return Placement()
    return Placement(ps=sizes, max_over_mean=max(known) * len(known) / sum(known))


def staleness_of(states: States) -> dict[str, int]:
    """By staleness, the gradients that ps 0 received; empty if it cannot be reached."""
    counts = states[0].staleness if states and states[0] is not None else ()
    return {str(late): count for late, count in enumerate(counts) if count}
