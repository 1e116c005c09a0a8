"""A chief whose place is taken by another, as in Kubernetes: SIGTERM has it make room, SIGINT ends the run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.local_fleet import JOB, PROGRAM
from support.service_process import END_SECS, START_SECS, Service, running

from psfleet.checkpoint import store
from psfleet.control import control_pb2 as pb
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.service.settings import LEAVE

RUN = "evicted"
STEPS = 2000
"""More than are made until the run is interrupted."""


@dataclass(frozen=True)
class Processes:
    """A ps, a worker and the chief, and the way to start another."""

    ps: Service
    worker: Service
    chief: Service
    start: Callable[..., Service]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Processes]:
    """Trains at an even pace, each process started by itself."""
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "pace").touch()
    shutil.copy(PROGRAM, tmp_path)
    options = {"gates": str(gates), "step_secs": 0.05}
    job = parse_job({**JOB, "options": options, "train": {**JOB["train"], "steps": STEPS}}).model_dump_json()
    variables = {"JOB": job, "RUN": RUN, "PROGRAM_FOLDER": str(tmp_path), "ON_SIGTERM": LEAVE}
    with ExitStack() as stack:
        ps = stack.enter_context(running("ps", tmp_path, INDEX="0", **variables)).serving()

        def start(index: int, **more: str) -> Service:
            worker = running("worker", tmp_path, INDEX=str(index), PS=ps.address.data, **variables, **more)
            return stack.enter_context(worker)

        yield Processes(ps, start(1), start(0), start)


def state(ps: Service) -> pb.ShardState:
    with ps.client(RUN) as client:
        return client.describe()


def wait_for_step(ps: Service, step: int) -> pb.ShardState:
    return wait_until(partial(state, ps), START_SECS, f"step {step}", done=lambda found: found.step >= step)


@pytest.mark.extended
def test_a_chief_that_is_evicted_stops_nobody_and_one_that_is_interrupted_saves_and_ends_the_run(
    fleet: Processes, tmp_path: Path
) -> None:
    """That a chief's successor reaches the final step is in test_fencing.py."""
    before = wait_for_step(fleet.ps, 5)
    fleet.chief.process.send_signal(signal.SIGTERM)
    assert fleet.chief.exit_code(END_SECS) == 128 + signal.SIGTERM
    between = state(fleet.ps)
    assert (between.phase, between.generation) == (pb.RUNNING, before.generation)
    assert not (tmp_path / Report.FILE_NAME).exists(), "the run has not ended"

    successor = fleet.start(0, CAUSE="evicted")
    seen = wait_for_step(fleet.ps, between.step + 10)
    successor.process.send_signal(signal.SIGINT)
    codes = [each.exit_code(START_SECS) for each in (successor, fleet.worker, fleet.ps)]
    assert codes == [128 + signal.SIGINT] * 3
    report = Report.read(tmp_path)
    saved = store.newest(tmp_path / "checkpoints")
    assert saved is not None
    assert (report.status, report.final_step, report.generation) == ("stopped", saved.step, before.generation)
    assert seen.step <= saved.step < STEPS
    assert sum(event.steps_lost for event in report.events) == 0
    assert report.gradients.pushed == report.gradients.used + report.gradients.dropped
