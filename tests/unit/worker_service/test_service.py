"""How a worker's process ends: which errors end the run, and which its chief reports."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.member_samples import of_fleet, process_of
from support.process_end import ProcessEnd
from support.program_samples import sample_job

from psfleet.control import control_pb2 as pb
from psfleet.errors import (
    LOST_PEERS,
    DataStallError,
    DeadlineError,
    LostPeerError,
    NoCheckpointError,
    ProgramError,
    PsfleetError,
    StoppedError,
)
from psfleet.job.sections import Deadlines
from psfleet.report import html
from worker_service import member_process, program_training
from worker_service.chief import leading
from worker_service.chief.disk import Disk
from worker_service.run_end import report_failure


def data_stall(ends_run: bool) -> DataStallError:
    error = DataStallError("the data set of worker 0 to give batch 7", 600)
    error.ends_run = ends_run
    return error


@pytest.mark.parametrize(("step", "ends_run"), [(2, True), (50, False)])
def test_a_program_that_stalls_before_the_first_step_ends_the_run_unless_the_fleet_trains_meanwhile(
    monkeypatch: pytest.MonkeyPatch, step: int, ends_run: bool
) -> None:
    """The same for every worker: a chief that starts again attaches to the fleet as the others do."""

    def stalls(*_: object) -> None:
        raise DataStallError("program 'program:build': train(2, 3)", 1800)

    steps = itertools.cycle([2, step])
    outcomes: list[pb.Outcome] = []
    fleet: Any = SimpleNamespace(
        describe=lambda: [pb.ShardState(phase=pb.RUNNING, generation=1, step=next(steps))], finish=outcomes.append
    )
    monkeypatch.setattr(program_training, "front_end", stalls)
    program: Any = None
    for index in (0, 2):
        with pytest.raises(DataStallError) as raised:
            program_training._front_end(program, sample_job(), index, fleet)
        stop: Any = SimpleNamespace(must_leave=lambda index: False, event=threading.Event())
        report_failure(fleet, raised.value, index, stop)
    assert len(outcomes) == 2 * ends_run


CASES = [
    (data_stall(ends_run=True), 0, True),
    (data_stall(ends_run=True), 1, True),
    (data_stall(ends_run=False), 0, False),
    (data_stall(ends_run=False), 1, False),
    (ProgramError("boom"), 1, True),
    (DeadlineError("a step", 600), 0, True),
    (DeadlineError("a step", 600), 1, False),
    (LostPeerError("gone"), 0, True),
]


class Ends:
    """What a process of a worker does as it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int) -> None:
        self.outcomes: list[pb.Outcome] = []
        self.reports: list[Any] = []
        stop: Any = SimpleNamespace(must_leave=lambda index: False, event=threading.Event())
        error.is_reported = False
        fleet: Any = SimpleNamespace(finish=self.outcomes.append, describe=lambda: [None])
        self.process = process_of(fleet, stop)
        self.context = of_fleet(fleet, Path("out"))

        def run() -> pb.Outcome:
            raise error

        chief = SimpleNamespace(error=None, run=run, report=lambda error, states: error)
        attempt = SimpleNamespace(may_report_failure=lambda states: True, out=Path("out"))
        storage = SimpleNamespace(writing=lambda what: nullcontext(), disk=Disk())
        components = SimpleNamespace(
            recorder=SimpleNamespace(close=lambda: None),
            callbacks=SimpleNamespace(end=lambda report: None),
            attempt=attempt,
            storage=storage,
        )
        monkeypatch.setattr(leading, "Chief", lambda *args: chief)
        monkeypatch.setattr(leading, "chief_components", lambda *args: components)
        monkeypatch.setattr(html, "publish", lambda report, out: self.reports.append(report))
        report_failure(fleet, error, index, stop)


@pytest.mark.parametrize(("error", "index", "ends_run"), CASES)
def test_a_worker_that_the_fleet_trains_without_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int, ends_run: bool
) -> None:
    assert [outcome.message for outcome in Ends(monkeypatch, error, index).outcomes] == [str(error)] * ends_run


@pytest.mark.parametrize(("error", "index", "ends_run"), [case for case in CASES if case[1] == 0])
def test_a_chief_that_the_fleet_trains_without_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int, ends_run: bool
) -> None:
    ends = Ends(monkeypatch, error, index)
    nothing: Any = None
    with pytest.raises(type(error)):
        leading.lead(ends.process, ends.context, nothing, nothing)
    assert ends.reports == [error] * ends_run


@pytest.mark.parametrize("failure", [NoCheckpointError("ps-0-of-1.safetensors has 0 bytes"), OSError(5, "I/O error")])
def test_a_chief_that_stops_ends_the_run_also_if_it_cannot_save_what_others_have_trained(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    exit_codes: list[int] = []

    def save() -> None:
        raise failure

    fleet = SimpleNamespace(describe=list, finish=lambda outcome: exit_codes.append(outcome.exit_code))
    stop = SimpleNamespace(must_save=lambda: True, must_leave=lambda index: False)
    monkeypatch.setattr(member_process, "save_trained", lambda *_: save())
    report = process_of(fleet, stop).stall_report()
    with pytest.raises(type(failure)):
        report(StoppedError(15))
    assert exit_codes == [128 + 15]


def test_a_callback_that_is_never_made_ends_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for it for ever, and the workers for the chief."""
    end = ProcessEnd()
    ends = Ends(monkeypatch, LostPeerError("gone"), 0)
    soon = sample_job().model_copy(update={"deadlines": Deadlines(stall_secs=0.01, first_batch_secs=0.01)})
    process = dataclasses.replace(ends.process, job=soon)
    monkeypatch.setattr(leading, "chief_components", end.hang)
    monkeypatch.setattr("worker_service.build_deadline.os._exit", end)
    nothing: Any = None
    with pytest.raises(ProgramError, match="released"):
        leading.lead(process, ends.context, nothing, nothing)
    assert end.codes == [LOST_PEERS]
    assert [outcome.exit_code for outcome in ends.outcomes] == [LOST_PEERS] * 2
