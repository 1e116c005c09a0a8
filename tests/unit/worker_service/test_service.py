"""How a worker's process ends: which errors end the run, and what its chief writes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.process_end import ProcessEnd
from support.program_samples import sample_job
from support.report_samples import DONE

from psfleet.control import control_pb2 as pb
from psfleet.errors import (
    LOST_PEERS,
    DataStallError,
    DeadlineError,
    LostPeerError,
    NoCheckpointError,
    ProgramError,
    PsfleetError,
    ReplacedError,
    StoppedError,
)
from psfleet.job.sections import Deadlines
from psfleet.report import html
from psfleet.report.schema import Report
from psfleet.service import settings
from worker_service import service
from worker_service.chief.components import chief_components
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.run_attempt import begin
from worker_service.chief.storage import Storage
from worker_service.fleet_state import States
from worker_service.run_end import report_failure

NO_PS = DeadlineError("all parameter servers to answer", 600)
NEWER_CHIEF = pb.ShardState(workers=[pb.WorkerState(index=0, incarnation=2, address="new:2222")])

UNSERVED = SimpleNamespace(bind=lambda *_: None, bind_chief=lambda *_: None)
"""No handle is served."""

Lead = Callable[..., None]


def of_fleet(fleet: Any, out: Path) -> Any:
    """The context of a chief."""
    return SimpleNamespace(fleet=fleet, incarnation=1, out=out, job=sample_job(), require_lease=lambda: None)


def chief_settings(out: Path, cause: str = "it was killed") -> settings.Settings:
    return settings.read({"PSFLEET_OUT": str(out), "PSFLEET_CAUSE": cause})


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lead:
    """Leads a run that ends with an error; its report is the text "failed".

    Args:
        ends: The error; one of the chief's own if it stopped after a checkpoint.
        states: What the ps answer at the end.
        replace: Called while the chief is frozen.
        finish: Ends the run on the ps; by default those that answer accept it.
    """

    def run(
        ends: PsfleetError,
        states: States,
        replace: Callable[[], object] = lambda: None,
        finish: Callable[[pb.Outcome], int] | None = None,
    ) -> None:
        def frozen() -> pb.Outcome:
            replace()
            if isinstance(ends, StoppedError):
                return pb.Outcome()
            raise ends

        own = ends if isinstance(ends, StoppedError) else None
        chief = SimpleNamespace(run=frozen, error=own, report=lambda error, states: "failed")
        components = SimpleNamespace(
            recorder=SimpleNamespace(close=lambda: None),
            callbacks=SimpleNamespace(end=lambda report: None),
            attempt=begin(chief_settings(tmp_path)),
            storage=Storage(Events(tmp_path, sample_job()), 1.0),
        )
        monkeypatch.setattr(service, "Chief", lambda *args: chief)
        monkeypatch.setattr(service, "chief_components", lambda *args: components)
        monkeypatch.setattr(html, "publish", lambda report, out: (out / Report.FILE_NAME).write_text(report))
        ends.is_reported = False
        fleet = SimpleNamespace(
            describe=lambda: states, finish=finish or (lambda outcome: len(states) - states.count(None))
        )
        process: Any = SimpleNamespace(
            settings=None, program="", disk=None, controls=UNSERVED, heartbeat=None, progress=None,
            job=sample_job(), fleet=fleet,
            metrics=SimpleNamespace(add_chief=lambda components: None),
            stop=SimpleNamespace(must_leave=lambda index: False, event=threading.Event()),
        )  # fmt: skip
        context = of_fleet(fleet, tmp_path)
        unused: Any = None
        service._lead(process, context, unused, unused)

    return run


def report(out: Path) -> str:
    path = out / Report.FILE_NAME
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("error", [NO_PS, StoppedError(15)], ids=["failed", "stopped"])
@pytest.mark.parametrize("states", [[None], [pb.ShardState()]], ids=["no ps answers", "a ps answers"])
def test_a_failure_never_replaces_the_report_of_a_run_that_is_done(
    lead: Lead, tmp_path: Path, error: PsfleetError, states: States
) -> None:
    """A chief that was frozen finds no ps: the run is over, and the chief that replaced it has reported."""
    attempt = begin(chief_settings(tmp_path))
    attempt.entry_in(DONE).write(tmp_path)
    done = report(tmp_path)
    with pytest.raises(type(error)):
        lead(error, states)
    assert report(tmp_path) == done


@pytest.mark.parametrize("error", [NO_PS, StoppedError(15)], ids=["failed", "stopped"])
def test_a_chief_without_ps_reports_how_its_run_ended(lead: Lead, tmp_path: Path, error: PsfleetError) -> None:
    with pytest.raises(type(error)):
        lead(error, [None])
    assert report(tmp_path) == "failed"


def test_a_replaced_chief_without_ps_reports_nothing(lead: Lead, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError):
        lead(NO_PS, [None], replace=lambda: begin(chief_settings(tmp_path)))
    assert report(tmp_path) == ""


def test_a_chief_that_is_replaced_after_it_looked_for_a_newer_one_reports_nothing(lead: Lead, tmp_path: Path) -> None:
    """It is frozen between the look and the report: ps 0 decides, before the report, who is the chief."""

    def refuse(outcome: pb.Outcome) -> int:
        raise ReplacedError(f"not by the older chief: {outcome.message}")

    with pytest.raises(ReplacedError, match="not by the older chief: lost"):
        lead(LostPeerError("lost"), [pb.ShardState()], finish=refuse)
    assert report(tmp_path) == ""


def test_a_chief_that_is_replaced_while_it_loads_the_program_leaves_the_records_of_the_newer_one(
    tmp_path: Path,
) -> None:
    DONE.write(tmp_path)
    (tmp_path / Report.DRAFT_NAME).write_text("of the newer one")
    context: Any = SimpleNamespace(fleet=SimpleNamespace(describe=lambda: [None, NEWER_CHIEF]), incarnation=1)
    front: Any = None
    with pytest.raises(ReplacedError, match="incarnation 1 was replaced by the process at new:2222"):
        chief_components(chief_settings(tmp_path, cause=""), context, front)
    assert (tmp_path / Report.DRAFT_NAME).exists()
    assert Report.read(tmp_path) == DONE


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
    monkeypatch.setattr(service, "front_end", stalls)
    program: Any = None
    for index in (0, 2):
        with pytest.raises(DataStallError) as raised:
            service._front_end(program, sample_job(), index, fleet)
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
        self.process: Any = SimpleNamespace(
            fleet=fleet, stop=stop, heartbeat=None, progress=None, settings=None, program="", job=sample_job(),
            disk=None, controls=UNSERVED, metrics=SimpleNamespace(add_chief=id),
        )  # fmt: skip
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
        monkeypatch.setattr(service, "Chief", lambda *args: chief)
        monkeypatch.setattr(service, "chief_components", lambda *args: components)
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
        service._lead(ends.process, ends.context, nothing, nothing)
    assert ends.reports == [error] * ends_run


@pytest.mark.parametrize("failure", [NoCheckpointError("ps-0-of-1.safetensors has 0 bytes"), OSError(5, "I/O error")])
def test_a_chief_that_stops_ends_the_run_also_if_it_cannot_save_what_others_have_trained(failure: Exception) -> None:
    told: list[int] = []

    def save() -> None:
        raise failure

    fleet = SimpleNamespace(describe=list, finish=lambda outcome: told.append(outcome.exit_code))
    stop = SimpleNamespace(must_save=lambda: True, must_leave=lambda index: False)
    process: Any = SimpleNamespace(fleet=fleet, heartbeat=SimpleNamespace(index=0), stop=stop, save_trained=save)
    report = service._stall_report(process)
    with pytest.raises(type(failure)):
        report(StoppedError(15))
    assert told == [128 + 15]


def test_a_callback_that_is_never_made_ends_the_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for it for ever, and the workers for the chief."""
    end = ProcessEnd()
    ends = Ends(monkeypatch, LostPeerError("gone"), 0)
    ends.process.job = sample_job().model_copy(update={"deadlines": Deadlines(stall_secs=0.01, first_batch_secs=0.01)})
    ends.process.heartbeat = SimpleNamespace(index=0)
    monkeypatch.setattr(service, "chief_components", end.hang)
    monkeypatch.setattr("worker_service.build_deadline.os._exit", end)
    nothing: Any = None
    with pytest.raises(ProgramError, match="released"):
        service._lead(ends.process, ends.context, nothing, nothing)
    assert end.codes == [LOST_PEERS]
    assert [outcome.exit_code for outcome in ends.outcomes] == [LOST_PEERS] * 2
