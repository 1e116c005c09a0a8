"""What a ps says of a step that waits."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import tensorflow as tf

from ps_service.runs import Run, Worker


@dataclass
class WaitingShard:
    """Stands for a shard at step 4 whose last update was 10 s ago."""

    answer: list[int] | Exception
    step: int = 4
    target: int = 9
    last_update: float = field(default_factory=lambda: time.monotonic() - 10)

    def labels(self) -> list[int]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def run_with(answer: list[int] | Exception) -> Run:
    run = Run("name", "")
    run.workers = {0: Worker(), 1: Worker(), 2: Worker(left=True)}
    shard: Any = WaitingShard(answer)
    run.shard = shard
    return run


def test_a_step_that_waits_is_told_of_once_with_those_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    run = run_with([4, 3, 2])
    with caplog.at_level(logging.WARNING, "psfleet.ps"):
        run.log_slow_step(5)
        run.log_slow_step(5)
    assert caplog.messages == ["step 4 waits for worker 1, worker 2 (gone)"]


@pytest.mark.parametrize("error", [tf.errors.CancelledError(None, None, "closed"), RuntimeError("a closed Session")])
def test_a_shard_that_is_closed_meanwhile_ends_nothing(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A new generation closes it while the ps looks."""
    run_with(error).log_slow_step(5)
    assert not caplog.messages
