"""Sections of the report that come from the states of the ps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psfleet.control import control_pb2 as pb
from psfleet.report.measurements import Gradients, Placement, PsGradients, WorkerGradients


def gradients_of(states: Sequence[pb.ShardState], examples_per_sec: Mapping[int, float]) -> Gradients:
    """Counts of gradients: ps 0's as the run's, and those of each ps, because each chooses its quorum on its own."""
    counts = [(_pushed(state), state.used) for state in states]
    per_ps = [
        PsGradients(pushed=sum(pushed), used=sum(used), dropped=sum(pushed) - sum(used)) for pushed, used in counts
    ]
    if not per_ps:
        return Gradients()
    pushed, used = counts[0]
    joined = {worker.index for worker in states[0].workers}
    per_worker = {
        str(index): WorkerGradients(
            pushed=pushed[index],
            used=used[index],
            examples_per_sec=examples_per_sec.get(index),
        )
        for index in sorted(joined)
        if index < len(pushed)
    }
    since = states[0].first_step
    return Gradients(**per_ps[0].model_dump(), since_step=since, per_worker=per_worker, per_ps=per_ps)


def _pushed(state: pb.ShardState) -> list[int]:
    """By worker index, the gradients that were pushed: at least those that were used, which a ps reads later."""
    return [max(pair) for pair in zip(state.pushed, state.used, strict=True)]


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
