"""A signal while the chief has no program: what the others have trained is saved without it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, sample_job, shard_state, with_parts

from psfleet.checkpoint.manifest import Checkpoint, read_manifest
from psfleet.checkpoint.store import newest_committed
from psfleet.control import control_pb2 as pb
from worker_service.chief import unbuilt_stop
from worker_service.chief.disk import Disk
from worker_service.chief.unbuilt_stop import save_trained

STOP_STEP = 44
"""The step in progress: the ps have made 43."""


class StoppingPs(Ps):
    """A ps that makes the step in progress when a stop is scheduled, and then writes its part."""

    def __init__(self, shard: int, state: pb.ShardState, part_of: Checkpoint) -> None:
        super().__init__(state)
        self._shard, self._part_of = shard, part_of

    def schedule_checkpoint(
        self, generation: int, step: int, stop: bool, signal_number: int = 0
    ) -> pb.ScheduleCheckpointReply:
        """See PsClient."""
        reply = super().schedule_checkpoint(generation, step, stop, signal_number)
        if not reply.accepted or self.states[0].phase == pb.COMPLETE:
            return pb.ScheduleCheckpointReply(accepted=False, step=self.states[0].step)
        complete = shard_state(step, phase=pb.COMPLETE, final_step=step)
        self.states = [with_parts(complete, self._shard, self._part_of)]
        return reply


class Fleet:
    """A fleet that trains generation 1 from step 40; its newest checkpoint is of step 40.

    Attributes:
        saved: The checkpoint whose parts the ps write, without its manifest.
    """

    def __init__(
        self, out: Path, step: int = 43, workers: int = 2, checkpoint_generation: int = 1, last: int = STOP_STEP
    ) -> None:
        root = out / "checkpoints"
        save(root, 40, generation=checkpoint_generation, extra={"program": "digest", "incarnation": 1})
        self.saved = save(root, last)
        (self.saved.folder / "manifest.json").unlink()
        self.out, self.ps = out, list[StoppingPs]()
        for shard in range(2):
            state = shard_state(step)
            state.first_step = 40
            state.workers.extend(pb.WorkerState(index=index + 1, is_alive=True) for index in range(workers))
            self.ps.append(StoppingPs(shard, state, self.saved))

    def stop(self) -> bool:
        """The chief gets a signal; whether it needs the program."""
        context = sample_context(self.out, self.ps, stops=True)
        settings: Any = SimpleNamespace(run="run", out=self.out, address=None, ps=())
        return save_trained(settings, sample_job(), context.fleet, context.stop, 3, Disk())

    def newest(self) -> Checkpoint:
        newest = newest_committed(self.out / "checkpoints")
        assert newest is not None
        return newest


def test_steps_that_the_others_have_made_since_the_newest_checkpoint_are_saved(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    assert not fleet.stop()
    assert [ps.scheduled for ps in fleet.ps] == [[(STOP_STEP, True)]] * 2
    newest = read_manifest(fleet.newest().folder)
    assert (newest.step, newest.layout, newest.extra) == (
        STOP_STEP,
        fleet.saved.layout,
        {"versions": {"psfleet": "0"}, "program": "digest", "incarnation": 3},
    )


def test_a_stop_that_a_chief_before_has_scheduled_is_committed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, workers=0)
    for ps in fleet.ps:
        ps.schedule_checkpoint(1, STOP_STEP, stop=True)
    assert not fleet.stop()
    assert fleet.newest().step == STOP_STEP


@pytest.mark.parametrize(
    ("changes", "needs_program"),
    [
        ({"step": 40}, False),
        ({"workers": 1}, True),
        ({"checkpoint_generation": 0}, True),
    ],
    ids=["nothing is unsaved", "the fleet waits for the chief", "the layout of the generation is not known"],
)
def test_otherwise_nothing_is_scheduled(tmp_path: Path, changes: dict[str, int], needs_program: bool) -> None:
    fleet = Fleet(tmp_path, **changes)
    assert fleet.stop() == needs_program
    assert [ps.scheduled for ps in fleet.ps] == [[], []]
    assert fleet.newest().step == 40


def test_the_final_step_is_saved_and_evaluated_with_the_program(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, last=100)
    for shard, ps in enumerate(fleet.ps):
        ps.states = [with_parts(shard_state(100, phase=pb.COMPLETE), shard, fleet.saved)]
    assert fleet.stop()
    assert fleet.newest().step == 100
    assert fleet.stop()


def test_a_fleet_that_does_not_reach_its_last_step_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path)
    monkeypatch.setattr(unbuilt_stop, "SAVE_SECS", -sample_job().deadlines.step_secs)
    for ps in fleet.ps:
        ps.accepts = lambda step: False
    assert not fleet.stop()
    assert "what the fleet has trained since its newest checkpoint is not saved: gave up after" in caplog.text


def test_a_run_folder_that_cannot_be_read_ends_the_stop_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(_: Path) -> Checkpoint:
        raise OSError("Stale file handle")

    fleet = Fleet(tmp_path)
    monkeypatch.setattr(unbuilt_stop, "newest_committed", gone)
    assert not fleet.stop()
    assert "is not saved: Stale file handle" in caplog.text
