"""Averaging mode: a worker whose slots are its own says that it starts without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psfleet.job.job import parse_job
from worker_service.session_start import SessionStart
from worker_service.updates import update_part

FINAL_STEP = 100


@pytest.mark.parametrize(
    ("optimizer", "average_slots", "step", "warned"),
    [
        ("adam", False, 40, True),
        ("adam", True, 40, False),
        ("sgd", False, 40, False),
        ("adam", False, 0, False),
        ("adam", False, FINAL_STEP, False),
    ],
)
def test_a_session_that_begins_without_the_slots_of_earlier_steps_says_so_once(
    optimizer: str, average_slots: bool, step: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    update = {"mode": "averaging", "local_steps": 10, "average_slots": average_slots}
    fields = {"name": "sample", "program": "program:build", "train": {"steps": FINAL_STEP, "batch_size": 4}}
    part = update_part(parse_job({**fields, "update": update, "optimizer": {"name": optimizer, "learning_rate": 0.1}}))
    unused: Any = None
    start = SessionStart(np.array([[step, FINAL_STEP]]), np.array([-1]))
    for _ in range(2):
        assert part.begin(unused, unused, start) is start.shards
    expected = (
        f"optimizer {optimizer} starts without state at step {step}: update.average_slots is false, and the slots of "
        "a worker end with its session"
    )
    assert caplog.messages == [expected] * warned
