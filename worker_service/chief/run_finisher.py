"""Ends a run: waits for the last checkpoint, verifies it, lets the fleet go, evaluates, and writes the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import verify
from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control.client import FleetClient
from psfleet.control.heartbeat import is_alive
from psfleet.errors import DONE, LostPeerError, ProgramError, PsfleetError, StoppedError, StorageError
from psfleet.job.job import Job
from psfleet.polling import wait_until
from psfleet.report.schema import (
    CheckpointInfo,
    Gradients,
    Placement,
    PsGradients,
    Report,
    StepSecs,
    WorkerGradients,
)
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.fleet_state import States

logger = logging.getLogger("psfleet.chief")

PACKAGES = ("psfleet", "tensorflow-cpu", "tensorflow", "keras", "numpy", "grpcio")
LEAVE_SECS = 2.0
"""How long the chief waits for the workers to leave their last step, so that the counts are final."""


class RunFinisher:
    """The end of a run as the chief brings it about.

    Args of the constructor:
        started: When this start of the run began, in seconds since 1970.
    """

    def __init__(
        self,
        fleet: FleetClient,
        job: Job,
        run: str,
        out: Path,
        recorder: Recorder,
        committer: CheckpointCommitter,
        events: Events,
        started: float,
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._run = run
        self._out = out
        self._recorder = recorder
        self._committer = committer
        self._events = events
        self._started = started

    def commit_last(self, generation: int) -> tuple[Checkpoint, States]:
        """Waits until every ps has written its part of the last step, and verifies the checkpoint.

        Raises:
            ProgramError: The weights are not finite.
            LostPeerError: A ps went away.
            StorageError: A part or the manifest cannot be written.
        """
        deadline = self._job.deadlines.step_secs
        states = wait_until(self._fleet.describe, deadline, "the parts of the last checkpoint", done=_is_complete)
        if _is_lost(states, generation):
            raise LostPeerError("a ps went away at the end")
        self._committer.look(states)
        step = min(state.step for state in states if state is not None)
        error = self._committer.error(states, step)
        if error:
            raise ProgramError(error) if "NaN" in error else StorageError(error)
        checkpoint = self._committer.newest
        if checkpoint is None or checkpoint.step != step:
            raise StorageError(f"the checkpoint of step {step} could not be committed")
        verify(checkpoint)
        logger.info("step %d is saved and verified", step, extra={"event": "verified", "step": step})
        return checkpoint, states

    def final_states(self, step: int) -> States:
        """The states of the ps once every living worker has left its last step, or did not in time."""

        def seen() -> States:
            return self._fleet.describe()

        def have_left(states: States) -> bool:
            workers = [worker for state in states if state is not None for worker in state.workers]
            return all(worker.step >= step or not is_alive(worker) for worker in workers)

        try:
            return wait_until(seen, LEAVE_SECS, "the workers to leave the last step", done=have_left, poll_secs=0.05)
        except PsfleetError as error:
            logger.warning("%s", error)
            return self._fleet.describe()

    def report(self, states: States, checkpoint: Checkpoint | None, error: PsfleetError | None = None) -> Report:
        """Evaluates the checkpoint if the run is done, and sums the run up."""
        if error is None and checkpoint is not None:
            self._recorder.evaluate(checkpoint.step, lambda: read_tensors(checkpoint))
        code = DONE if error is None else error.exit_code
        status = "done" if error is None else "stopped" if isinstance(error, StoppedError) else "failed"
        recorder = self._recorder
        known = [state for state in states if state is not None]
        events = self._events.all()
        return Report(
            status=status,
            exit_code=code,
            error=str(error) if error else None,
            name=self._job.name,
            run=self._run,
            mode=self._job.update.mode,
            target_step=self._job.train.steps,
            final_step=max([state.step for state in known] + [checkpoint.step if checkpoint else 0]),
            generation=max([state.generation for state in known] + [checkpoint.generation if checkpoint else 0]),
            seconds=time.time() - self._started,
            examples_per_sec=recorder.examples_per_sec(),
            step_secs=StepSecs(p50=recorder.quantile_secs(0.5), p95=recorder.quantile_secs(0.95)),
            loss=recorder.loss,
            eval=recorder.metrics,
            gradients=_gradients(known),
            staleness=_staleness(known),
            placement=_placement(known),
            restarts=sum(event.kind == "restarted" for event in events),
            events=events,
            checkpoint=CheckpointInfo(path=str(checkpoint.folder), step=checkpoint.step) if checkpoint else None,
            versions=versions(),
        )


def versions() -> dict[str, str]:
    """The version of each package that matters, by name."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_complete(states: States) -> bool:
    return all(state is None or state.phase != pb.RUNNING for state in states)


def _is_lost(states: States, generation: int) -> bool:
    return any(state is None or state.phase != pb.COMPLETE or state.generation != generation for state in states)


def _gradients(states: Sequence[pb.ShardState]) -> Gradients:
    """Counts of gradients, as ps 0 has them; each ps decides for itself what it uses."""
    per_ps = [
        PsGradients(pushed=sum(state.pushed), used=sum(state.used), dropped=sum(state.pushed) - sum(state.used))
        for state in states
    ]
    if not per_ps:
        return Gradients()
    joined = {worker.index for worker in states[0].workers}
    per_worker = {
        str(index): WorkerGradients(pushed=states[0].pushed[index], used=states[0].used[index])
        for index in sorted(joined)
        if index < len(states[0].pushed)
    }
    since = states[0].first_step
    return Gradients(**per_ps[0].model_dump(), since_step=since, per_worker=per_worker, per_ps=per_ps)


def _placement(states: Sequence[pb.ShardState]) -> Placement:
    sizes = [state.model_bytes for state in states]
    if not any(sizes):
        return Placement()
    return Placement(ps=sizes, max_over_mean=max(sizes) * len(sizes) / sum(sizes))


def _staleness(states: Sequence[pb.ShardState]) -> dict[str, int]:
    """By staleness, the gradients that came to ps 0."""
    counts = states[0].staleness if states else ()
    return {str(late): count for late, count in enumerate(counts) if count}
