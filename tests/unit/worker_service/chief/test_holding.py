"""Where the chief has a fleet held, through losses of ps and chiefs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ps_service.hold import Hold
from psfleet.control import control_pb2 as pb
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import LostPeerError, StorageError
from psfleet.job.update import Update
from psfleet.report.hold import AT_START, FILE_NAME, HoldRecord
from worker_service.chief.disk import Disk
from worker_service.chief.held_run import HeldRun
from worker_service.chief.holding import Holding

FINAL = 100


class Shard:
    """One ps, as the chief calls it: it makes some steps before each call."""

    def __init__(self, step: int, steps_before: tuple[int, ...] = ()) -> None:
        graph: Any = self
        self.step, self._steps, self._calls, self.is_lost = step, list(steps_before), 0, False
        self.hold = Hold(graph, None)

    def set_final_step(self, step: int) -> bool:
        return step > self.step

    def raise_final_step(self, step: int) -> bool:
        return step > self.step

    def schedule_hold(self, generation: int, step: int | None) -> pb.ScheduleHoldReply:
        """See PsClient."""
        del generation
        if self.is_lost:
            raise LostPeerError("gone")
        self._calls += 1
        self.step += self._steps.pop(0) if self._steps else 0
        accepted = self.hold.schedule(step, (1, self._calls), self.step, FINAL)
        return pb.ScheduleHoldReply(accepted=accepted, step=self.step)

    def state(self) -> pb.ShardState:
        state = pb.ShardState(phase=pb.RUNNING, generation=1, step=self.step, final_step=FINAL)
        if self.hold.at is not None:
            state.hold_at = self.hold.at
        return state


def states(ps: list[Any]) -> list[pb.ShardState]:
    return [one.state() for one in ps]


@pytest.mark.parametrize("steps", [(0, 0), (0, 1), (3, 0, 7), (0, 9, 0, 0), (5000,)])
def test_a_pause_is_at_one_step_on_all_ps_that_none_has_passed(tmp_path: Path, steps: tuple[int, ...]) -> None:
    ps: list[Any] = [Shard(20), Shard(20, steps)]
    holding = Holding(tmp_path, Disk(), Update())
    with holding.pausing(states(ps), ps) as is_accepted:
        assert is_accepted
        assert ps[0].hold.at == ps[1].hold.at == holding.at
        assert all(one.step <= one.hold.at for one in ps)
    holding.update(states(ps), ps)
    assert [one.hold.at for one in ps] == [None, None]


def test_a_pause_that_a_lost_ps_prevents_is_ended_on_the_others(tmp_path: Path) -> None:
    ps: list[Any] = [Shard(20), Shard(20)]
    ps[1].is_lost = True
    holding = Holding(tmp_path, Disk(), Update())
    with holding.pausing(states(ps), ps) as is_accepted:
        assert not is_accepted
    holding.update(states(ps), ps)
    assert ps[0].hold.at is None


def test_a_held_run_is_held_where_it_starts_and_by_the_next_chief(tmp_path: Path) -> None:
    HoldRecord(AT_START).write(tmp_path)
    assert Holding(tmp_path, Disk(), Update()).of_generation(30) == 30
    chief = Holding(tmp_path, Disk(), Update())
    chief.hold_at(50, "call")
    assert Holding(tmp_path, Disk(), Update()).record == HoldRecord(50, "call")
    assert Holding(tmp_path, Disk(), Update()).of_generation(30) == 50, "after a rollback the steps are made again"


def test_a_ps_that_a_dead_chief_has_left_behind_gets_the_step(tmp_path: Path) -> None:
    """It died between its requests."""
    HoldRecord(50, "call").write(tmp_path)
    ps: list[Any] = [Shard(30), Shard(30)]
    ps[0].schedule_hold(1, 50)
    Holding(tmp_path, Disk(), Update()).update(states(ps), ps)
    assert [one.hold.at for one in ps] == [50, 50]


def test_a_pause_ends_with_its_generation(tmp_path: Path) -> None:
    ps: list[Any] = [Shard(20)]
    holding = Holding(tmp_path, Disk(), Update())
    with holding.pausing(states(ps), ps):
        assert holding.of_generation(21) is None


def test_a_disk_that_refuses_the_step_is_an_error_of_storage_and_changes_nothing(tmp_path: Path) -> None:
    """It is repeated, as any write; the step before stays that of all ps."""
    HoldRecord(30, "before").write(tmp_path)
    holding = Holding(tmp_path, Disk(), Update())
    (tmp_path / f".{FILE_NAME}.tmp").mkdir()
    with pytest.raises(StorageError, match=r"hold\.json.* cannot be written"):
        holding.hold_at(50, "call")
    assert (holding.at, Holding(tmp_path, Disk(), Update()).at) == (30, 30)


def test_a_call_that_is_repeated_after_one_of_another_handle_trains_no_more_steps(tmp_path: Path) -> None:
    """Its connection broke, and the other handle was faster than its next attempt."""
    HoldRecord(20).write(tmp_path)
    ps: list[Any] = [Shard(90)]
    context = SimpleNamespace(
        fleet=SimpleNamespace(describe=lambda: states(ps), ps=ps), job=SimpleNamespace(update=Update())
    )
    operations: Any = SimpleNamespace(
        context=context, training=lambda found: found, check_active=lambda is_active: None
    )
    for calls, step in ((("first",), 25), (("second", "first", "second"), 30), (("third", "first"), 35)):
        chief = Holding(tmp_path, Disk(), Update())
        held: Any = HeldRun(operations, chief, *[None] * 2)  # type: ignore[arg-type]
        for call in calls:
            held.train(run_pb.RunCall(call=call), 5, lambda: True)
        assert chief.at == step
    assert held.train(run_pb.RunCall(call="first"), 5, lambda: True) == 25
