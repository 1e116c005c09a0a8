"""A chief whose place is taken by another, as in Kubernetes: SIGTERM has it make room, SIGINT ends the run."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest
from kit import JOB, PROGRAM
from service import END_SECS, START_SECS, Service, running

from psfleet import checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.job import parse_job
from psfleet.report import Report
from psfleet.settings import LEAVE
from psfleet.waiting import wait_until

RUN = "evicted"
STEPS = 120


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., AbstractContextManager[Service]]:
    """Starts a process of the run by its role and index."""
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "pace").touch()
    shutil.copy(PROGRAM, tmp_path)
    options = {"gates": str(gates), "step_secs": 0.05}
    job = parse_job({**JOB, "options": options, "train": {**JOB["train"], "steps": STEPS}}).model_dump_json()
    return partial(
        running, folder=tmp_path, JOB=job, RUN=RUN, PROGRAM_FOLDER=str(tmp_path), ON_SIGTERM=LEAVE, METRICS_PORT="0"
    )


def state(ps: Service) -> pb.ShardState:
    with ps.client(RUN) as client:
        return client.describe()


def await_step(ps: Service, step: int) -> pb.ShardState:
    return wait_until(partial(state, ps), START_SECS, f"step {step}", done=lambda found: found.step >= step)


def test_a_chief_that_is_evicted_stops_nobody(
    start: Callable[..., AbstractContextManager[Service]], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ps = stack.enter_context(start("ps", INDEX="0")).serving()
        told = {"PS": ps.address.data}
        worker = stack.enter_context(start("worker", INDEX="1", **told))
        chief = stack.enter_context(start("worker", INDEX="0", **told))
        before = await_step(ps, 5)
        chief.process.send_signal(signal.SIGTERM)
        assert chief.exit_code(END_SECS) == 128 + signal.SIGTERM
        between = state(ps)
        assert (between.phase, between.generation) == (pb.RUNNING, before.generation)
        assert not (tmp_path / Report.FILE_NAME).exists(), "the run has not ended"

        successor = stack.enter_context(start("worker", INDEX="0", CAUSE="evicted", **told))
        assert [each.exit_code(START_SECS) for each in (successor, worker, ps)] == [0, 0, 0]
    report = Report.read(tmp_path)
    assert (report.status, report.final_step, report.generation) == ("done", STEPS, before.generation)
    assert sum(event.steps_lost for event in report.events) == 0
    assert report.gradients.pushed == report.gradients.used + report.gradients.dropped


def test_a_chief_that_is_interrupted_saves_and_ends_the_run(
    start: Callable[..., AbstractContextManager[Service]], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ps = stack.enter_context(start("ps", INDEX="0")).serving()
        told = {"PS": ps.address.data}
        worker = stack.enter_context(start("worker", INDEX="1", **told))
        chief = stack.enter_context(start("worker", INDEX="0", **told))
        await_step(ps, 5)
        chief.process.send_signal(signal.SIGINT)
        codes = [each.exit_code(START_SECS) for each in (chief, worker, ps)]
        assert codes == [128 + signal.SIGINT] * 3
    report = Report.read(tmp_path)
    saved = checkpoint.newest(tmp_path / "checkpoints")
    assert saved is not None
    assert (report.status, report.final_step) == ("stopped", saved.step)
    assert 5 <= saved.step < STEPS
    assert json.loads((saved.folder / "manifest.json").read_text())["step"] == saved.step
