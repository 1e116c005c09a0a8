"""The state of the fleet, from the states of all ps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from signal import SIGTERM

import numpy as np

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, ReplacedError, StoppedError
from psfleet.layout import APPROXIMATE, Layout

TRAINING = (pb.RUNNING, pb.COMPLETE)
MAX_DIFFERENCE = 1e-3
"""Of constants, relative to their norm: less is taken for rounding, also where a variance is a small difference."""

States = Sequence[pb.ShardState | None]
"""The state of each ps in their order; None for a ps that cannot be reached."""


def generation_of(states: States, layout: Layout, job_digest: str) -> int | None:
    """The generation that every ps trains; None if one does not train, or if they differ.

    None, too, if a ps trains by another job: the chief is about to restore it for that of this process.

    Args:
        job_digest: See `psfleet.job.agreement`.

    Raises:
        BadJobError: A ps has another layout than this program; names a lookup table or constants that differ.
    """
    digest = layout.digest()
    known = {shard: state for shard, state in enumerate(states) if state is not None and state.phase in TRAINING}
    if trains_other_job(states, job_digest):
        return None
    for shard, state in known.items():
        check_constants(dict(state.tables), dict(layout.tables))
        if state.layout_digest != digest:
            check_tables(dict(state.tables), dict(layout.tables))
            raise BadJobError(f"ps {shard} has layout {state.layout_digest}, expected {digest} of this program")
    generations = {state.generation for state in known.values()}
    return generations.pop() if len(known) == len(states) and len(generations) == 1 else None


def trains_other_job(states: States, job_digest: str) -> bool:
    """Whether a ps trains by a job that differs in what is common to all processes."""
    known = [state.job_digest for state in states if state is not None and state.phase in TRAINING]
    return any(digest not in ("", job_digest) for digest in known)


def shown(states: States) -> str:
    """The states in one line: `ps 0 trains generation 2 at step 17, ps 1 does not answer`."""
    return ", ".join(f"ps {shard} {_shown(state)}" for shard, state in enumerate(states))


def _shown(state: pb.ShardState | None) -> str:
    if state is None:
        return "does not answer"
    if state.phase not in TRAINING:
        return f"is {pb.Phase.Name(state.phase).lower()}"
    return f"trains generation {state.generation} at step {state.step}"


def check_tables(of_run: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Checks that the lookup tables that two models have have the same content.

    Args:
        of_run: Digests by the name of the layer, of the chief's model.
        own: Of the model of this process.

    Raises:
        BadJobError: Those of a layer differ.
    """
    for layer in sorted(of_run.keys() & own.keys()):
        if of_run[layer] != own[layer]:
            raise BadJobError(
                f"layer {layer}: its lookup table has the content {own[layer]} in this process and {of_run[layer]} in "
                "the chief; expected the same vocabulary in every worker: give it to the layer, or adapt the layer to "
                "data that do not depend on the worker"
            )


def check_constants(of_run: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Checks that the constants of layers that two models have are about the same; see `frontends.layer_constants`.

    Args:
        of_run: Fingerprints by the name of the layer, of the chief's model; and other digests.
        own: Of the model of this process.

    Raises:
        BadJobError: Those of a layer differ.
    """
    for name in sorted(of_run.keys() & own.keys()):
        if own[name].startswith(APPROXIMATE) and _differ(of_run[name], own[name]):
            raise BadJobError(
                f"{name}: number, norm and projection are {own[name]} in this process and {of_run[name]} in the chief; "
                "expected the same constants in every worker: compute them from data that do not depend on the worker, "
                "or make them weights of the layer (add_weight), which all workers have from the chief"
            )


def _differ(one: str, other: str) -> bool:
    """Whether two fingerprints differ by more than rounding."""
    if one == other:
        return False
    (size, norm, projection), (other_size, other_norm, other_projection) = (
        map(float, text.removeprefix(APPROXIMATE).split()) for text in (one, other)
    )
    limit = MAX_DIFFERENCE * max(norm, other_norm)
    # Not with `>`: a number that is not finite differs from every other one.
    is_near = abs(norm - other_norm) <= limit and abs(projection - other_projection) <= limit
    return size != other_size or not is_near


def outcome_of(states: States) -> pb.Outcome | None:
    """How the run has ended, if a ps knows it."""
    return next((state.outcome for state in states if state is not None and state.phase == pb.FINISHED), None)


def has_generation(state: pb.ShardState, generation: int) -> bool:
    """Whether a ps has the shard of a generation; one without a shard reports the newest generation that it had."""
    return state.phase != pb.EMPTY and state.generation == generation


def is_complete(states: States) -> bool:
    """Whether every ps has made and saved the last step."""
    return all(state is not None and state.phase == pb.COMPLETE for state in states)


def is_late(states: States, generation: int, step: int) -> bool:
    """Whether every ps has made and saved the last step, and a worker at an earlier step can contribute nothing."""
    return all(
        state is not None and state.phase == pb.COMPLETE and state.generation == generation and state.step > step
        for state in states
    )


def is_generation_over(states: States, generation: int) -> bool:
    """Whether every ps can be reached, and one has another generation or no shard."""
    return all(state is not None for state in states) and any(
        state is not None and not has_generation(state, generation) for state in states
    )


def have_one_end(states: States) -> bool:
    """Whether all ps end training at one step.

    Of two that have accepted a stop at once, one that is held ends where it is, and one whose hold was raised or set at
    that moment at the step of the request, which no worker reaches then.
    """
    return len({None if state is None else state.final_step for state in states}) == 1


def last_step(state: pb.ShardState) -> int:
    """The step at which workers leave a shard: the final one, or that at which the run is held before."""
    return min(state.hold_at, state.final_step) if state.HasField("hold_at") else state.final_step


def is_held(states: States) -> bool:
    """Whether a ps has reached the step at which the run is held, and all can be reached."""
    return None not in states and any(
        state is not None and state.phase in TRAINING and last_step(state) <= state.step < state.final_step
        for state in states
    )


def is_held_before(states: States, step: int) -> bool:
    """Whether a ps does not train up to a step, because the run is held before it."""
    return any(state is not None and state.HasField("hold_at") and state.hold_at < step for state in states)


def trains_past(states: States, step: int) -> bool:
    """Whether every ps has steps to make after the step at which a worker left training; older states do not count."""
    return all(
        state is not None and state.phase in TRAINING and step <= state.step < last_step(state) for state in states
    )


def has_moved_end(states: States, generation: int, shards: np.ndarray) -> bool:
    """Whether a ps has got a later final step since a worker has made its last step.

    In async mode a ps that has accepted a stop drops all gradients after it, and another one may have refused that stop
    because it was past it, and have made the job's last step meanwhile. The chief then moves the stop, and the first
    one needs further gradients.

    Args:
        generation: Of the worker.
        shards: Global step and final step of each shard after the worker's last step, int64 `[num_ps, 2]`. States of
            earlier steps are older than that.
    """
    return any(
        state is not None and has_generation(state, generation) and made <= state.step < last_step(state)
        for state, (made, _) in zip(states, shards.tolist(), strict=True)
    )


def trains_on(before: States, after: States) -> bool:
    """Whether every shard has made steps between two looks of a worker that has not yet pushed a gradient.

    One step does not say so: its gradient can be that of the worker's predecessor.
    """
    return all(
        new is not None and new.step > _step_before(old, new) + 1 for old, new in zip(before, after, strict=True)
    )


def _step_before(old: pb.ShardState | None, new: pb.ShardState) -> int:
    """The step of an earlier state; that at which its generation started if it is of another one, or unknown."""
    return int(old.step if old is not None and has_generation(old, new.generation) else new.first_step)


def check_chief(states: States, incarnation: int) -> None:
    """Checks, before the chief writes what only one chief may write, that no ps knows of a newer one.

    Raises:
        ReplacedError: A ps knows one.
    """
    for state in states:
        for worker in state.workers if state is not None else ():
            if worker.index == 0 and worker.incarnation > incarnation:
                raise ReplacedError(
                    f"this chief with incarnation {incarnation} was replaced by the process at {worker.address} "
                    f"with incarnation {worker.incarnation}: it writes no manifest and no report"
                )


def stop_error(own: int, states: States) -> StoppedError:
    """The error of a run that a signal ended before its final step.

    Args:
        own: The signal that this chief received; 0: the chief before it did, and the ps know which.
    """
    return StoppedError(own or max([state.stop_signal for state in states if state is not None], default=0) or SIGTERM)
