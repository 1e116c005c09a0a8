"""A live run without processes: a claimed folder, and a chief's run control around ps that answer what a test says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from psfleet.checkpoint.store import newest_committed
from psfleet.control import control_pb2 as pb
from psfleet.control.server import serving
from psfleet.job.update import Update
from psfleet.platforms.local.control_file import ControlFile
from psfleet.processes.ports import free_addresses
from psfleet.report.hold import HoldRecord
from psfleet.run_folder import claimed
from support.checkpoint_samples import SLOTS, save
from support.chief_samples import Ps, sample_context, sample_job, sample_storage, shard_state, with_parts
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.holding import Holding
from worker_service.chief.run_control import ChiefServices, RunControlServicer
from worker_service.errands import Errands

RUN = "run"
NUM_PS = 2
DISK_FULL = "No space left on device"


class SimulatedPs(Ps):
    """A ps that makes a step each time it is asked, and writes the parts that are scheduled."""

    def __init__(self, shard: int, live: LiveChief) -> None:
        super().__init__()
        self._shard, self._live = shard, live

    def describe(self) -> pb.ShardState:
        """See PsClient."""
        live = self._live
        if self._shard == 0:
            live.advance()
        state = shard_state(live.step, generation=live.generation, phase=live.phase)
        state.slots[:] = SLOTS
        if live.hold_at is not None:
            state.hold_at = live.hold_at
        due = {step for step, _ in self.scheduled if step <= live.step} | {live.hold_at} - {None}
        for step in sorted(step for step in due if step <= live.step):
            error = DISK_FULL if step < live.is_full_before else ""
            with_parts(state, self._shard, live.written(step), error)
        return state

    def schedule_checkpoint(
        self, generation: int, step: int, stop: bool, signal_number: int = 0
    ) -> pb.ScheduleCheckpointReply:
        """See PsClient."""
        self.scheduled.append((step, stop))
        return pb.ScheduleCheckpointReply(accepted=True, step=self._live.step)

    def schedule_hold(self, generation: int, step: int | None) -> pb.ScheduleHoldReply:
        """See PsClient."""
        assert generation == self._live.generation
        self._live.hold_at = step
        return pb.ScheduleHoldReply(accepted=True, step=self._live.step)


@dataclass
class LiveChief:
    """What a test changes while the run is live.

    Attributes:
        out: The run's folder.
        step: Of all ps.
        moves: Whether each look at the fleet finds it a step further.
        outcome: How the run has ended.
        hold_at: Where all ps hold.
        held_from: Where they hold when a generation starts.
        looks: Called at each look at the fleet.
        is_full_before: The disk of the ps refuses the parts of the steps before this one.
        sections: Of the job.
    """

    out: Path
    step: int = 40
    generation: int = 1
    phase: pb.Phase = pb.RUNNING
    moves: bool = True
    outcome: pb.Outcome | None = None
    looks: Callable[[], object] = lambda: None
    hold_at: int | None = None
    held_from: int | None = None
    is_full_before: int = 0
    sections: Mapping[str, Any] = field(default_factory=dict)
    _written: dict[int, Any] = field(default_factory=dict)

    def advance(self) -> None:
        """A step of the fleet."""
        self.looks()
        newest = newest_committed(self.out / "checkpoints")
        if newest is not None and newest.generation > self.generation:
            self.generation, self.step, self.hold_at = newest.generation + 1, newest.step, self.held_from
        elif self.step != self.hold_at:
            self.step += self.moves

    def written(self, step: int) -> Any:
        """The checkpoint of a step, whose parts this writes."""
        key = step, self.generation
        if key not in self._written:
            self._written[key] = save(self.out / "checkpoints", step, generation=self.generation)
            (self._written[key].folder / "manifest.json").unlink()
        return self._written[key]

    def services(self) -> ChiefServices:
        """Those of the run's chief."""
        ps = [SimulatedPs(shard, self) for shard in range(NUM_PS)]
        context = sample_context(self.out, ps, job=sample_job(**self.sections))
        heartbeat: Any = Beats(self)
        storage = sample_storage(context)
        components: Any = SimpleNamespace(
            committer=CheckpointCommitter(context, {}, storage),
            holding=Holding(self.out, storage.disk, Update()),
            events=storage.events,
            recorder=None,
        )
        return ChiefServices.of(context, heartbeat, components, Errands())


class Beats:
    """The heartbeat of the chief."""

    def __init__(self, live: LiveChief) -> None:
        self._live = live

    @property
    def states(self) -> list[pb.ShardState]:
        """Of all ps, as of the newest reply."""
        return [shard_state(self._live.step, generation=self._live.generation)] * NUM_PS

    @property
    def outcome(self) -> pb.Outcome | None:
        """How the run has ended."""
        return self._live.outcome


@contextmanager
def live(out: Path, held_at: int | None = None, run: str = RUN, **sections: Any) -> Iterator[LiveChief]:
    """A run that is live until the end of the block.

    Args:
        held_at: The step at which a run is held that was started so; None: it was not.
        run: Its id.
        sections: Of the job.
    """
    [address] = free_addresses(1)
    servicer, chief = RunControlServicer(run), LiveChief(out.resolve(), sections=sections)
    with claimed(out, sample_job(), fresh=False), serving(address, run_control=servicer):
        ControlFile(run, os.getpid(), address.control).write(out)
        if held_at is not None:
            HoldRecord(held_at).write(chief.out)
            chief.hold_at = chief.held_from = chief.step = held_at
        servicer.bind(chief.services())
        yield chief
