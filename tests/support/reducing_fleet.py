"""A fleet with a plateau schedule whose ps and chiefs are simulated around the real pauses and records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ps_service import rate_reductions
from psfleet.control import control_pb2 as pb
from psfleet.errors import ReplacedError
from psfleet.report.reductions import ReductionLog
from psfleet.report.schema import Evaluation
from support.chief_samples import sample_context, sample_job, sample_storage, shard_state
from worker_service.chief.monitor import Monitor

NUM_PS = 3
STEPS = 1000
SCHEDULE = {"kind": "plateau", "metric": "accuracy", "patience": 1, "factor": 0.5, "min_delta": 0}
JOB = sample_job(
    fleet={"ps": NUM_PS, "workers": 2},
    train={"steps": STEPS, "batch_size": 8},
    evaluate={"every_steps": 10},
    optimizer={"name": "sgd", "learning_rate": 0.5, "schedule": SCHEDULE},
)


class DeadChiefError(Exception):
    """The chief is killed at this moment."""


class Shard:
    """One ps as the chief calls it: its updates, by the number of reductions that each was made with.

    Attributes:
        final_step: That of the job, or of a stop.
        updates: By the step before each update.
        failures: Raised by calls, by the number of calls that are made before.
        chief: The highest incarnation of a chief.
        chance: Decides how many updates are made around each call.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.step, self.calls, self.updates = 0, 0, dict[int, int]()
        self.final_step = STEPS
        self.failures: dict[int, Exception] = {}
        self.chance, self.chief = chance, 0
        self.reductions = rate_reductions.RateReductions()

    def schedule_reductions(
        self, reductions: Sequence[int], pause_at: int | None, chief: int
    ) -> pb.ScheduleReductionsReply:
        """See PsClient.

        Args:
            chief: The incarnation of the caller.
        """
        if chief < self.chief:
            raise ReplacedError(f"chief {chief} was replaced by {self.chief}")
        self._advance_by_chance()
        failure = self.failures.pop(0, None)
        self.failures = {calls - 1: error for calls, error in self.failures.items()}
        if failure is not None:
            raise failure
        self.calls += 1
        accepted = self.reductions.schedule(reductions, pause_at, (chief, self.calls), self.step)
        reply = pb.ScheduleReductionsReply(accepted=accepted, step=self.step)
        self._advance_by_chance()
        return reply

    def advance(self, step: int) -> None:
        """Makes updates up to a step, or up to one at which it pauses."""
        while self.step < step and self.reductions._pause_at != self.step:
            self.updates[self.step] = self.reductions.await_number(self.step)
            self.step += 1

    def state(self) -> Any:
        return shard_state(self.step, final_step=self.final_step)

    def _advance_by_chance(self) -> None:
        if self.chance is not None:
            self.advance(self.step + self.chance.choice([0, 0, 1, 2, 5, 40]))


@dataclass(frozen=True)
class Client:
    """A ps as one chief calls it."""

    shard: Shard
    chief: int

    def schedule_reductions(
        self, generation: int, reductions: Sequence[int], pause_at: int | None = None
    ) -> pb.ScheduleReductionsReply:
        """See PsClient."""
        del generation
        return self.shard.schedule_reductions(reductions, pause_at, self.chief)


class Run:
    """The folder of a run with its ps; its chiefs come and go."""

    def __init__(self, out: Path, chance: random.Random | None = None) -> None:
        self.out, self.shards = out, [Shard(chance) for _ in range(NUM_PS)]
        self.start_chief()

    def start_chief(self) -> None:
        """Another chief replaces the one that there is."""
        for shard in self.shards:
            shard.chief += 1
        self.context = sample_context(self.out, [], JOB)
        self.storage = sample_storage(self.context)
        self.monitor = Monitor(self.out, JOB, self.storage)

    def evaluate(self, step: int, accuracy: float) -> None:
        metrics = {"accuracy": accuracy}
        self.monitor.evaluated(Evaluation(time=0, step=step, generation=1, secs=0.1, metrics=metrics))

    def beat(self) -> None:
        """A heartbeat of the chief."""
        clients: Any = [Client(shard, shard.chief) for shard in self.shards]
        self.monitor.reductions.update([shard.state() for shard in self.shards], clients)

    def recorded(self) -> list[int]:
        return [each.step for each in ReductionLog(self.out / ReductionLog.FILE_NAME).made()]

    def check(self) -> None:
        """Every ps made each of its updates with the recorded number of reductions."""
        steps = self.recorded()
        for shard in self.shards:
            assert shard.updates == {step: sum(each <= step for each in steps) for step in range(shard.step)}
