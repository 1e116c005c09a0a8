"""On which parameters a worker starts, while the shards are updated."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as v1
from support.program_samples import sample_job

from psfleet.errors import LostPeerError
from psfleet.job.sections import Deadlines
from worker_service.first_pull import NEWEST, pull_one_step
from worker_service.session_start import SessionStart

Read = Sequence[tuple[int, int]]
"""Global step and started step of each segment."""


def start(
    *reads: Read, is_exact: bool = True, num_ps: int = 2, step_secs: float = 30
) -> tuple[SessionStart, list[int]]:
    """What a session starts on when the shards are at these steps, one read after the other; the steps it asks for.

    Before each read of the parameters it reads the steps, here those of the read before.
    """
    asked: list[int] = []

    def run(fetch: str, feeds: dict[str, int] | None = None, **_: object) -> np.ndarray:
        if fetch == "steps":
            return np.array([[step, -1] for step, _ in reads[max(0, len(asked) - 1)]])
        asked.append((feeds or {})["at"])
        return np.array([[step, 100, started] for step, started in reads[len(asked) - 1]])

    session: Any = SimpleNamespace(run=run)
    step: Any = SimpleNamespace(shard_steps="steps", pull="pull", local_step="at")
    job = sample_job().model_copy(update={"deadlines": Deadlines(step_secs=step_secs)})
    fleet = job.fleet.model_copy(update={"ps": num_ps, "spares": 0 if is_exact else 1})
    job = job.model_copy(update={"fleet": fleet})
    found = pull_one_step(session, step, job, v1.RunOptions())
    return found, asked


def test_shards_one_step_apart_are_read_at_the_lower_step() -> None:
    found, asked = start([(7, 7), (6, 6)])
    assert (found.global_step, asked) == (6, [6])


def test_parameters_that_were_read_during_an_update_are_read_again() -> None:
    found, asked = start([(6, 7), (6, 6)], [(7, 7), (6, 6)])
    assert (found.global_step, asked) == (6, [6, 6])


def test_a_step_that_ends_between_the_two_reads_makes_a_third() -> None:
    found, asked = start([(6, 7), (6, 6)], [(7, 7), (7, 7)], [(7, 7), (7, 7)])
    assert (found.global_step, asked) == (7, [6, 6, 7])


def test_a_fleet_that_does_not_wait_for_the_worker_does_not_keep_it_from_starting() -> None:
    found, asked = start([(6, 7), (6, 6)], [(9, 10), (8, 9)], [(11, 12), (10, 11)])
    assert (found.global_step, asked) == (10, [6, 6, NEWEST])


def test_without_kept_parameters_the_first_read_counts() -> None:
    found, asked = start([(6, 6), (4, 4)], is_exact=False)
    assert (found.global_step, asked) == (4, [NEWEST])


def test_a_ps_whose_segments_are_one_step_apart_is_read_at_the_lower_step() -> None:
    found, asked = start([(7, 7), (6, 6)], num_ps=1)
    assert (found.shards.tolist(), asked) == ([[6, 100]], [6])


def test_shards_that_never_settle_are_given_up_at_the_deadline() -> None:
    with pytest.raises(
        LostPeerError, match=r"global steps are \[6, 6\] with updates to \[7, 6\] in progress after 1e-09 s"
    ):
        start([(6, 7), (6, 6)], step_secs=1e-9)
