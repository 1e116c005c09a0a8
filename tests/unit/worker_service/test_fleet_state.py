"""What a chief concludes from the states of all ps."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, ReplacedError
from psfleet.layout import Layout, TensorSpec
from worker_service.fleet_state import (
    States,
    check_chief,
    generation_of,
    has_generation,
    has_moved_end,
    is_held,
    stop_error,
    trains_on,
    trains_past,
)

JOB = "digest of the job"


def states_with(incarnation: int) -> States:
    """One ps that cannot be reached, and one that knows a chief."""
    return [None, pb.ShardState(workers=[pb.WorkerState(index=0, incarnation=incarnation, address="new:2222")])]


def test_a_chief_writes_only_while_no_ps_knows_a_newer_one() -> None:
    check_chief(states_with(3), 3)
    check_chief([None], 3)
    with pytest.raises(ReplacedError, match="incarnation 3 was replaced by the process at new:2222 with incarnation 4"):
        check_chief(states_with(4), 3)


@pytest.mark.parametrize(
    ("state", "is_there"),
    [
        (pb.ShardState(generation=2, phase=pb.RUNNING), True),
        (pb.ShardState(generation=2, phase=pb.COMPLETE), True),
        (pb.ShardState(generation=3, phase=pb.RUNNING), False),
        (pb.ShardState(generation=2, phase=pb.EMPTY), False),
        (pb.ShardState(phase=pb.EMPTY), False),
    ],
    ids=["training", "complete", "another generation", "a shard that is closed", "restarted"],
)
def test_a_ps_without_a_shard_has_no_generation(state: pb.ShardState, is_there: bool) -> None:
    """While it builds the next shard, its generation is still that of the shard before."""
    assert has_generation(state, 2) == is_there


@pytest.mark.parametrize(
    ("own", "stored", "expected"),
    [(0, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGINT, 143), (0, 0, 143)],
    ids=["the chief before got the signal", "its own", "nobody knows"],
)
def test_the_exit_code_of_a_stopped_run_names_a_signal_also_after_a_restart_of_the_chief(
    own: int, stored: int, expected: int
) -> None:
    """A new chief has received no signal: 128 + 0 would look like no signal at all."""
    assert stop_error(own, [None, pb.ShardState(stop_signal=stored)]).exit_code == expected


def shard_at(step: int, generation: int = 1, first_step: int = 0) -> pb.ShardState:
    phase = pb.RUNNING if generation else pb.EMPTY
    return pb.ShardState(phase=phase, generation=generation, step=step, first_step=first_step)


@pytest.mark.parametrize(
    ("before", "after", "trains"),
    [
        ([shard_at(7), shard_at(7)], [shard_at(9), shard_at(9)], True),
        ([shard_at(7), shard_at(7)], [shard_at(9), shard_at(8)], False),
        ([shard_at(7), shard_at(7)], [shard_at(9), None], False),
        ([shard_at(0, generation=0)], [shard_at(2)], True),
        ([shard_at(0, generation=0)], [shard_at(0)], False),
        ([shard_at(0, generation=0)], [shard_at(0, generation=0)], False),
        ([None], [shard_at(42, first_step=40)], True),
        ([shard_at(50)], [shard_at(42, generation=2, first_step=40)], True),
        ([shard_at(50)], [shard_at(41, generation=2, first_step=40)], False),
    ],
    ids=[
        "two steps", "the predecessor's step", "a lost ps", "since the start", "before the first step", "no start",
        "since it answers", "since a rollback", "a step since a rollback",
    ],
)  # fmt: skip
def test_a_fleet_trains_on_without_a_worker_if_every_shard_makes_steps(
    before: States, after: States, trains: bool
) -> None:
    assert trains_on(before, after) == trains


def layout_with(**tables: str) -> Layout:
    return Layout.plan([TensorSpec("w", (3,))], [], [], 1, 4096, tuple(tables.items()))


def training(layout: Layout) -> States:
    digest = layout.digest()
    return [
        pb.ShardState(phase=pb.RUNNING, generation=2, layout_digest=digest, tables=dict(layout.tables), job_digest=JOB)
    ]


def test_a_fleet_with_the_tensors_and_lookup_tables_of_the_program_has_a_generation() -> None:
    assert generation_of(training(layout_with(words="one")), layout_with(words="one"), JOB) == 2


def test_ps_that_train_by_another_job_have_no_generation_for_this_one_whatever_their_layout_is() -> None:
    assert generation_of(training(layout_with(words="one")), layout_with(words="one"), "another") is None
    assert generation_of(training(layout_with(words="one")), layout_with(words="two"), "another") is None


def test_a_lookup_table_with_another_content_is_refused_by_the_name_of_its_layer() -> None:
    expected = (
        "layer words: its lookup table has the content two in this process and one in the chief; expected the same"
    )
    with pytest.raises(BadJobError, match=expected):
        generation_of(training(layout_with(colors="same", words="one")), layout_with(colors="same", words="two"), JOB)
    with pytest.raises(BadJobError, match=r"ps 0 has layout .*, expected .* of this program"):
        generation_of(training(layout_with(words="one")), layout_with(others="one"), JOB)
    with pytest.raises(BadJobError, match=r"ps 1 has layout"):
        generation_of([None, *training(layout_with(words="one"))], layout_with(others="one"), JOB)


@pytest.mark.parametrize(
    ("own", "is_same"),
    [
        ("about 5 2.0 1.0", True),
        ("about 5 2.0000019 1.0", True),
        ("about 5 2.0 0.9999981", True),
        ("about 6 2.0 1.0", False),
        ("about 5 2.01 1.0", False),
        ("about 5 2.0 1.01", False),
        ("about 5 nan nan", False),
    ],
)
def test_constants_of_a_layer_must_be_those_of_the_chief_but_for_rounding(own: str, is_same: bool) -> None:
    fleet = training(layout_with(scale="about 5 2.0 1.0", words="one"))
    if is_same:
        assert generation_of(fleet, layout_with(scale=own, words="one"), JOB) == 2
    else:
        with pytest.raises(
            BadJobError, match=f"scale: number, norm and projection are {own} in this process and about"
        ):
            generation_of(fleet, layout_with(scale=own, words="one"), JOB)


def test_constants_that_are_not_finite_are_those_of_the_chief_if_they_are_equal() -> None:
    constants = layout_with(scale="about 5 nan nan")
    assert generation_of(training(constants), constants, JOB) == 2


def held(step: int, at: int, phase: pb.Phase = pb.RUNNING, final_step: int = 100) -> pb.ShardState:
    return pb.ShardState(phase=phase, step=step, hold_at=at, final_step=final_step)


@pytest.mark.parametrize(
    ("states", "is_it"),
    [
        pytest.param([held(40, 40), held(40, 40)], True, id="all at the hold"),
        pytest.param([held(40, 40), held(39, 40)], True, id="one of them"),
        pytest.param([held(40, 50), held(40, 50)], False, id="before it"),
        pytest.param([held(40, 40), None], False, id="a ps is away"),
        pytest.param([held(40, 40, final_step=40)], False, id="a stop has made it the final step"),
        pytest.param([pb.ShardState(phase=pb.RUNNING, step=40, final_step=100)], False, id="no hold"),
        pytest.param([pb.ShardState(phase=pb.EMPTY)], False, id="no shard"),
    ],
)
def test_a_run_is_held_where_a_ps_waits_before_the_final_step(states: States, is_it: bool) -> None:
    assert is_held(states) == is_it


@pytest.mark.parametrize(
    ("states", "do_they"),
    [
        pytest.param([held(40, 50), held(40, 50)], True, id="the hold was raised"),
        pytest.param([held(40, 50), held(40, 40)], False, id="on one ps only"),
        pytest.param([held(50, 50), held(50, 50)], False, id="the others have made the steps without this worker"),
        pytest.param([held(45, 90, pb.COMPLETE, 45)], False, id="a stop, which a late chief finds"),
    ],
)
def test_a_worker_trains_on_once_every_ps_has_steps_to_make(states: States, do_they: bool) -> None:
    assert trains_past(states, 40) == do_they


def ends_at(final_step: int, step: int, **fields: Any) -> pb.ShardState:
    return pb.ShardState(**{"phase": pb.RUNNING, "generation": 1, "step": step, "final_step": final_step, **fields})


MADE = ends_at(43, 43, phase=pb.COMPLETE)


@pytest.mark.parametrize(
    ("states", "has_moved"),
    [
        pytest.param([ends_at(40, 40), MADE], False, id="each has made its last step"),
        pytest.param([ends_at(46, 40), MADE], True, id="one has got a later one"),
        pytest.param([ends_at(46, 40, hold_at=40), MADE], False, id="it is held before that"),
        pytest.param([ends_at(46, 39), MADE], False, id="a state from before the worker's last step"),
        pytest.param([ends_at(46, 40, phase=pb.EMPTY), MADE], False, id="a ps without a shard"),
        pytest.param([ends_at(46, 40, generation=2), MADE], False, id="another generation"),
        pytest.param([None, MADE], False, id="a ps that cannot be reached"),
    ],
)
def test_a_worker_trains_on_once_a_ps_has_a_later_last_step_than_it_has_made(states: States, has_moved: bool) -> None:
    """It has made its last step at 40 on ps 0 and at 43 on ps 1."""
    assert has_moved_end(states, 1, np.array([[40, 40], [43, 43]])) == has_moved
