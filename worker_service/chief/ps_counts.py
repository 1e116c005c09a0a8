"""Sections of the report that come from the states of the ps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psfleet.control import control_pb2 as pb
from psfleet.report.measurements import Gradients, Placement, PsGradients, WorkerGradients


def gradients_of(states: Sequence[pb.ShardState], examples_per_sec: Mapping[int, float]) -> Gradients:
    """Counts of gradients: ps 0's as the run's, and those of each ps, because each chooses its quorum on its own."""
    per_ps = [
        PsGradients(pushed=sum(state.pushed), used=sum(state.used), dropped=sum(state.pushed) - sum(state.used))
        for state in states
    ]
    if not per_ps:
        return Gradients()
    joined = {worker.index for worker in states[0].workers}
    per_worker = {
        str(index): WorkerGradients(
            pushed=states[0].pushed[index],
            used=states[0].used[index],
            examples_per_sec=examples_per_sec.get(index),
        )
        for index in sorted(joined)
        if index < len(states[0].pushed)
    }
    since = states[0].first_step
    return Gradients(**per_ps[0].model_dump(), since_step=since, per_worker=per_worker, per_ps=per_ps)


def placement_of(states: Sequence[pb.ShardState]) -> Placement:
    """Bytes of the model on each ps."""
    sizes = [state.model_bytes for state in states]
    if not any(sizes):
        return Placement()
    return Placement(ps=sizes, max_over_mean=max(sizes) * len(sizes) / sum(sizes))


def staleness_of(states: Sequence[pb.ShardState]) -> dict[str, int]:
    """By staleness, the gradients that ps 0 received."""
    counts = states[0].staleness if states else ()
    return {str(late): count for late, count in enumerate(counts) if count}
