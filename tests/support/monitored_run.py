"""A chief without processes whose job keeps the best checkpoint and stops early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import PsfleetError
from psfleet.job.job import Job
from psfleet.report.schema import Evaluation, Report
from support.checkpoint_samples import sample_layout, save
from support.chief_samples import Ps, sample_context, sample_job, sample_storage, shard_state, with_parts
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.monitor import Monitor
from worker_service.chief.recorder import Recorder
from worker_service.chief.run_attempt import Attempt
from worker_service.chief.run_finisher import RunFinisher


def job(keep: int = 1, steps: int = 100, **stop: Any) -> Job:
    """Evaluates every 20 steps; ends after 2 evaluations without an improvement."""
    watched = {"metric": "accuracy", "patience": 2} | stop
    return sample_job(
        evaluate={"every_steps": 20, "stop": watched},
        checkpoint={"every_steps": 10, "keep": keep, "best": {"metric": "accuracy"}},
        train={"steps": steps, "batch_size": 8},
    )


class Run:
    """One chief process on the folder of a run."""

    def __init__(self, out: Path, the_job: Job | None = None, stops: bool = False) -> None:
        self.out, self.job = out, the_job or job()
        self.ps = [Ps(shard_state(0)), Ps(shard_state(0))]
        self.context = sample_context(out, self.ps, self.job, stops=stops)
        self.storage = storage = sample_storage(self.context)
        self.events = storage.events
        self.monitor = Monitor(out, self.job, storage)
        self.committer = CheckpointCommitter(self.context, {}, storage, self.monitor)
        self.recorder = Recorder(out, self.job, sample_layout(), None, storage, self.monitor)
        attempt = Attempt(out, 0.0, "")
        self.finisher = RunFinisher(self.context, self.recorder, self.committer, storage, attempt)

    def commit(self, *steps: int, now: int | None = None) -> None:
        """The parts of checkpoints are seen with one heartbeat."""
        states = [shard_state(now or steps[-1] + 1) for _ in range(2)]
        for step in steps:
            saved = save(self.out / "checkpoints", step)
            (saved.folder / "manifest.json").unlink()
            for shard, state in enumerate(states):
                with_parts(state, shard, saved).slots[:] = saved.slots
        self.committer.update(states)

    def evaluate(self, **accuracies: float) -> None:
        """Evaluates steps, by names s20, s40 and so on."""
        for name, value in accuracies.items():
            metrics = {"loss": 0.5, "accuracy": value}
            self.monitor.evaluated(
                Evaluation(time=0, step=int(name.removeprefix("s")), generation=1, secs=0.1, metrics=metrics)
            )

    def kinds(self) -> list[str]:
        """Of the events."""
        return [event.kind for event in self.events.all()]

    def report(self, checkpoint: Checkpoint, error: PsfleetError | None = None) -> Report:
        """Of a run that is done, or that an error has ended."""
        return self.finisher.report([], checkpoint, error)

    def folders(self) -> list[int]:
        """The steps of the checkpoints in the folder."""
        return sorted(int(path.name.partition("-")[0]) for path in (self.out / "checkpoints").iterdir())

    def best(self) -> tuple[int, float] | None:
        best = self.monitor.best
        return None if best is None else (best.step, best.value)
