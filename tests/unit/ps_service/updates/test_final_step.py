"""What a ps answers to a stop that comes while it updates its shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps_service.updates import final_step
from ps_service.updates.final_step import FinalStep

STOP = 5


class Session:
    """Calls of TensorFlow on a shard whose progress is given: global step, final step and started step."""

    def __init__(self, progress: list[tuple[int, int, int]]) -> None:
        self.progress = progress
        self.requested: list[int] = []

    def run(self, fetch: str, feeds: dict[str, Any] | None = None) -> Any:
        """See tf.compat.v1.Session."""
        if fetch == "request":
            self.requested += map(int, (feeds or {}).values())
            return None
        return np.array(self.progress.pop(0) if len(self.progress) > 1 else self.progress[0])


@pytest.mark.parametrize(
    ("progress", "accepted"),
    [
        pytest.param([(4, 100, 4)], True, id="the workers still compute the step"),
        pytest.param([(2, 100, 3)], True, id="an earlier step is updated"),
        pytest.param([(4, STOP, 5)], True, id="the update has taken the request over"),
        pytest.param([(5, STOP, 5)], True, id="and is done"),
        pytest.param([(4, 100, 5), (4, 100, 5), (5, 100, 5)], False, id="the update began before the request"),
        pytest.param([(4, 100, 5), (4, STOP, 5)], True, id="the update begins at this moment"),
        pytest.param([(4, 100, 5)], False, id="the update does not end in time"),
    ],
)
def test_a_stop_is_accepted_if_every_worker_reads_it_with_that_step(
    monkeypatch: pytest.MonkeyPatch, progress: list[tuple[int, int, int]], accepted: bool
) -> None:
    monkeypatch.setattr(final_step, "UPDATE_SECS", 0.05)
    made: Any = FinalStep.__new__(FinalStep)
    made._has_quorum, made._step, made._request, made._progress = True, "step", "request", "progress"
    session: Any = Session(progress)
    assert made.set(session, STOP) == accepted
    assert session.requested == [STOP]


@pytest.mark.parametrize(
    ("progress", "raised"),
    [
        pytest.param([(4, 9, 4)], True, id="no update is in progress"),
        pytest.param([(4, 9, 5), (5, 4, 5), (5, 9, 5)], True, id="an update writes the step of the request before it"),
        pytest.param([(4, 9, 5)], False, id="the update does not end in time"),
    ],
)
def test_workers_train_on_to_a_later_step(
    monkeypatch: pytest.MonkeyPatch, progress: list[tuple[int, int, int]], raised: bool
) -> None:
    monkeypatch.setattr(final_step, "UPDATE_SECS", 0.05)
    made: Any = FinalStep.__new__(FinalStep)
    made._has_quorum, made._step, made._request, made._raise, made._progress = True, "step", "request", "request", "now"
    session: Any = Session(progress)
    assert made.raise_to(session, 9) == raised
    assert set(session.requested) == {9}
