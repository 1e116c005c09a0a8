"""How a chief that leads a run ends: what it reports, and which report it never replaces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.member_samples import of_fleet, process_of
from support.program_samples import sample_job
from support.report_samples import DONE

from psfleet.control import control_pb2 as pb
from psfleet.errors import (
    DeadlineError,
    LostPeerError,
    PsfleetError,
    ReplacedError,
    StoppedError,
)
from psfleet.report import html
from psfleet.report.schema import Report
from psfleet.service import settings
from worker_service.chief import leading
from worker_service.chief.components import chief_components
from worker_service.chief.events import Events
from worker_service.chief.run_attempt import begin
from worker_service.chief.storage import Storage
from worker_service.fleet_state import States

NO_PS = DeadlineError("all parameter servers to answer", 600)
NEWER_CHIEF = pb.ShardState(workers=[pb.WorkerState(index=0, incarnation=2, address="new:2222")])

Lead = Callable[..., None]


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
        monkeypatch.setattr(leading, "Chief", lambda *args: chief)
        monkeypatch.setattr(leading, "chief_components", lambda *args: components)
        monkeypatch.setattr(html, "publish", lambda report, out: (out / Report.FILE_NAME).write_text(report))
        ends.is_reported = False
        fleet = SimpleNamespace(
            describe=lambda: states, finish=finish or (lambda outcome: len(states) - states.count(None))
        )
        process = process_of(fleet, SimpleNamespace(must_leave=lambda index: False, event=threading.Event()))
        context = of_fleet(fleet, tmp_path)
        unused: Any = None
        leading.lead(process, context, unused, unused)

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
