"""A stop of a held run in the moment in which its hold is raised: every order of the chief's requests to two ps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import sample_context, sample_job, sample_storage

from ps_service.hold import Hold
from ps_service.shard import Shard
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.fleet_state import trains_past

HELD, RAISED, FINAL = 40, 60, 100
MAX_LOOKS = 20
PAUSED_LOOKS = 3
"""After which a pause ends."""


class Ps:
    """A shard with the end that its workers read, as the chief calls it.

    Args of the constructor:
        held: Where it is held; None: it trains.

    Attributes:
        before_stop: Called when the request of a stop arrives.
    """

    def __init__(self, held: int | None = HELD) -> None:
        graph: Any = self
        self.end, self._numbers, self.before_stop = held or FINAL, itertools.count(1), lambda: None
        self.shard: Any = Shard.__new__(Shard)
        self.shard._graph, self.shard.plan, self.shard._lock = (
            graph,
            SimpleNamespace(job=sample_job()),
            threading.Lock(),
        )
        self.shard.step, self.shard.final_step, self.shard._scheduled = HELD, FINAL, set()
        self.shard.hold, self.shard.writer = Hold(graph, held), SimpleNamespace(has_ended=lambda step: True)

    def set_final_step(self, step: int) -> bool:
        """See `ShardGraph`: the next update makes it the end, which no worker makes after the present end."""
        if self.shard.step < self.end:
            self.end = step
        return True

    def raise_final_step(self, step: int) -> bool:
        """See `ShardGraph`."""
        self.end = step
        return True

    def schedule_hold(self, generation: int, step: int | None) -> bool:
        """See PsClient."""
        del generation
        return bool(self.shard.schedule_hold(step, (1, next(self._numbers))))

    def schedule_checkpoint(self, generation: int, step: int, stop: bool, _: int) -> pb.ScheduleCheckpointReply:
        """See PsClient."""
        del generation
        self.before_stop()
        return pb.ScheduleCheckpointReply(accepted=self.shard.schedule_checkpoint(step, stop), step=self.shard.step)

    def describe(self) -> pb.ShardState:
        """See PsClient."""
        shard = self.shard
        phase = pb.COMPLETE if shard.is_complete else pb.RUNNING
        state = pb.ShardState(phase=phase, generation=1, step=shard.step, final_step=shard.final_step)
        if shard.hold.at is not None:
            state.hold_at = shard.hold.at
        return state


def train(ps: Sequence[Ps]) -> None:
    """The workers make the next step if they can make it on all ps."""
    if trains_past([one.describe() for one in ps], ps[0].shard.step) and all(one.shard.step < one.end for one in ps):
        for one in ps:
            one.shard.step += 1


def refuse() -> None:
    raise LostPeerError("the request is lost")


@pytest.mark.parametrize(("first", "second"), [(i, j) for i in range(3) for j in range(i, 3)])
@pytest.mark.parametrize(
    ("held", "to"),
    [
        pytest.param(HELD, RAISED, id="train"),
        pytest.param(HELD, None, id="end of a pause"),
        pytest.param(None, HELD + 1, id="begin of a pause"),
    ],
)
def test_both_ps_end_at_one_step(tmp_path: Path, first: int, second: int, held: int | None, to: int | None) -> None:
    """The hold is set on ps 0 before request `first` of the stop, on ps 1 before request `second`; 2: after both."""
    ps = [Ps(held), Ps(held)]
    raises: list[tuple[int, Callable[[], object]]] = [
        (first, lambda: ps[0].schedule_hold(1, to)),
        (second, lambda: ps[1].schedule_hold(1, to)),
    ]

    def raise_before(request: int) -> None:
        while raises and raises[0][0] <= request:
            raises.pop(0)[1]()

    for number, one in enumerate(ps):
        one.before_stop = lambda number=number: raise_before(number)

    def after_look(look: int) -> None:
        raise_before(2)
        if held is None and look == PAUSED_LOOKS:
            for one in ps:
                one.schedule_hold(1, None)

    # Of a fleet that trains a stop is asked for some steps ahead.
    assert ends(tmp_path, ps, after_look, steps_per_sec=0.0 if held else 8.0) < RAISED


@pytest.mark.parametrize("to", [HELD, RAISED], ids=["stays held", "raised"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_request_that_is_lost_is_repeated_until_both_end_at_one_step(tmp_path: Path, lost: int, to: int) -> None:
    ps = [Ps(), Ps()]
    ps[lost].before_stop = refuse

    def arrives(look: int) -> None:
        del look
        ps[lost].before_stop = lambda: None
        for one in ps:
            one.schedule_hold(1, to)

    assert ends(tmp_path, ps, arrives) < RAISED


def ends(out: Path, ps: Sequence[Ps], after_look: Callable[[int], None], steps_per_sec: float = 0.0) -> int:
    """The step at which a stop ends both ps, within some looks of the chief at them."""
    clients: Any = ps
    context = sample_context(out, clients, stops=True)
    committer = CheckpointCommitter(context, {}, sample_storage(context))
    committer._steps_per_sec = steps_per_sec
    for look in range(MAX_LOOKS):
        committer.update([one.describe() for one in ps])
        after_look(look)
        train(ps)
    found = [(one.shard.step, one.shard.final_step, one.shard.is_complete) for one in ps]
    assert found[0] == found[1], found
    assert found[0][0] == found[0][1], f"the workers wait at {found[0][0]} for ever"
    assert found[0][2]
    return int(found[0][0])
